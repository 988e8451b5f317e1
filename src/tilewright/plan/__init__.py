"""The plan: a model as groups of Computations and host fallbacks over buffers."""
