"""Searching the graphs that substitutions reach for the cheapest one."""
