"""Rewrites of graphs as rows: a pattern, what replaces it, and when."""
