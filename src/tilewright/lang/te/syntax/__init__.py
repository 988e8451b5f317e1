"""Tensor expressions: Computations written as `C = compute(shape, lambda y, x: ...)`."""
