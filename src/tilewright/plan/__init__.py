"""The plan: a model as fusion groups, host fallbacks and device copies over buffers."""
