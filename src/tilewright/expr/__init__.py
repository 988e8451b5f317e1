"""Scalar expressions and quasi-affine index maps."""
