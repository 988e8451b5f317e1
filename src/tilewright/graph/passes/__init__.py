"""Rewrites of graphs, and what is decided over a whole graph: fusion, layouts, memory."""
