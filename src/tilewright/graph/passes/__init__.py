"""Graph rewrites, and decisions over a whole graph: fusion, layouts, memory."""
