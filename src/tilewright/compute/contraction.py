"""Contractions: sums of products, the Computations that take most of a model's time."""

from __future__ import annotations

from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import is_sum
from tilewright.expr.nodes import Load, Mul
from tilewright.ir.node import Node, postorder


def is_contraction(computation: Computation) -> bool:
    """A sum of products of two tensors: a matrix product, a convolution."""
    op = computation.reducer
    if op is None or len(computation.outputs) != 1 or not is_sum(op):
        return False
    reading: set[Node] = set()  # nodes with a load at or below them
    for n in postorder(computation.outputs[0].value):
        if isinstance(n, Mul) and n.lhs in reading and n.rhs in reading:
            return True
        if isinstance(n, Load) or not reading.isdisjoint(n.children()):
            reading.add(n)
    return False
