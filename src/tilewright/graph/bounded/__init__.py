"""Graphs whose extents depend on data, as graphs of bounded tensors with counts."""
