"""random_float, random_int, random_uint: numbers that depend on the coordinates alone.

At each point of a definition, the value is a hash of the point, the seed (by default the call's
position) and the definition's number, so reruns reproduce it. The numbers differ from Halide's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.expr import nodes
from tilewright.ir.node import Node, transform
from tilewright.lang.halide.syntax.expr import Expr, as_expr, as_value, cast_to

_calls = count(1)


class RandomDraw(nodes.Buffer):
    """Stands for a random number until it is known which definition draws it."""

    __slots__ = ("seed",)

    def __init__(self, seed: nodes.Expr, dtype: DType) -> None:
        super().__init__("random", (), dtype)
        self.seed = seed


def _draw(seed: Any, dtype: DType) -> Expr:
    found: nodes.Expr
    if seed is None:  # a call without a seed differs from all others
        found = nodes.const((next(_calls) << 8 | 1) & 0xFFFFFFFF, dtypes.uint32)
    else:
        found = as_value(cast_to(as_expr(seed), dtypes.uint32))
    return Expr(nodes.Load(RandomDraw(found, dtype), ()), dtype)


def random_float(seed: Any = None) -> Expr:
    """A Float(32) in [0, 1), another one at each point of the definition it is in."""
    return _draw(seed, dtypes.float32)


def random_uint(seed: Any = None) -> Expr:
    """Any UInt(32), another one at each point of the definition it is in."""
    return _draw(seed, dtypes.uint32)


def random_int(seed: Any = None) -> Expr:
    """Any Int(32), another one at each point of the definition it is in."""
    return _draw(seed, dtypes.int32)


def drawn(value: nodes.Expr, number: int, point: Sequence[nodes.Expr]) -> nodes.Expr:
    """The value with its random numbers computed; `number`: of the definition it is in."""

    def step(node: Node) -> Node:
        if isinstance(node, nodes.Load) and isinstance(node.buffer, RandomDraw):
            return _number(node.buffer, number, point)
        return node

    found: nodes.Expr = transform(value, step)
    return found


def _number(draw: RandomDraw, number: int, point: Sequence[nodes.Expr]) -> nodes.Expr:
    state = _mixed(nodes.Xor(draw.seed, _word(number * 0x9E3779B1 & 0xFFFFFFFF)))
    for coordinate in point:
        bits = nodes.Cast(coordinate, dtypes.uint32)
        state = _mixed(nodes.Xor(state, nodes.Mul(bits, _word(0x9E3779B1))))
    if not draw.dtype.is_float:
        return as_value(cast_to(Expr(state), draw.dtype))
    digits = nodes.Shr(state, _word(8))  # as many as a float32 has
    return nodes.Mul(
        nodes.Cast(digits, dtypes.float32), nodes.const(2.0**-24, dtypes.float32)
    )


def _word(value: int) -> nodes.Expr:
    return nodes.const(value, dtypes.uint32)


def _mixed(e: nodes.Expr) -> nodes.Expr:
    """Each bit depends on all bits: the final steps of MurmurHash3 of 32 bits."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        e = nodes.Mul(nodes.Xor(e, nodes.Shr(e, _word(shift))), _word(factor))
    return nodes.Xor(e, nodes.Shr(e, _word(16)))
