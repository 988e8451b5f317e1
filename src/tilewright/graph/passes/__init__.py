"""Passes over whole graphs that are not rules: clean-up, derivatives, decompositions."""
