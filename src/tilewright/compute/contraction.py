"""Contractions: sums of products, the Computations that take most of a model's time."""

from __future__ import annotations

from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import is_sum
from tilewright.expr.nodes import Load, Mul
from tilewright.ir.node import postorder


def is_contraction(computation: Computation) -> bool:
    """A sum of products of two tensors: a matrix product, a convolution."""
    op = computation.reducer
    if op is None or len(computation.outputs) != 1 or not is_sum(op):
        return False
    value = computation.outputs[0].value
    return any(isinstance(n, Mul) and _two_tensors(n) for n in postorder(value))


def _two_tensors(product: Mul) -> bool:
    sides = [
        {n.buffer for n in postorder(side) if isinstance(n, Load)}
        for side in (product.lhs, product.rhs)
    ]
    return bool(sides[0]) and bool(sides[1])
