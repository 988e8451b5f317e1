"""The plan: a model as groups of Computations and host calls over buffers."""
