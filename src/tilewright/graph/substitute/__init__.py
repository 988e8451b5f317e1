"""Searching the graphs that substitutions lead to for the one that costs least."""
