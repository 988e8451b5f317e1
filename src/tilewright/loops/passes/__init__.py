"""Rewrites of whole Kernels that need no schedule decision."""
