"""Graphs with data-dependent extents, rewritten as graphs of bounded tensors with counts."""
