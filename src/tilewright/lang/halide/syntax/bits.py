"""Bits of integers: how many are set, and parts of a number, as Halide defines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.lang.halide.syntax.expr import Expr, as_expr, as_value, cast_to
from tilewright.lang.halide.syntax.types import Type, plain


def _unsigned(dtype: DType, bits: int | None = None) -> DType:
    return dtype_of(f"uint{bits or dtype.bits}")


def _bits_of(name: str, value: Any) -> tuple[nodes.Expr, DType]:
    """An integer's bits, unsigned, and its dtype."""
    e = as_expr(value)
    if not e.dtype.is_int:
        raise InputError(f"{name} of {e.dtype}", hint="cast it to an integer")
    return as_value(cast_to(e, _unsigned(e.dtype))), e.dtype


def _count(bits: nodes.Expr, dtype: DType) -> Expr:
    return cast_to(Expr(nodes.Call("popcount", (bits,))), dtype)


def popcount(value: Any) -> Expr:
    """How many bits of an integer are 1, in its type."""
    return _count(*_bits_of("popcount", value))


def count_leading_zeros(value: Any) -> Expr:
    """How many bits above the highest 1 are 0, in the integer's type; of 0 its width."""
    bits, dtype = _bits_of("count_leading_zeros", value)
    step = 1
    while step < dtype.bits:
        bits = nodes.Or(bits, nodes.Shr(bits, nodes.const(step, bits.dtype)))
        step *= 2
    return _count(nodes.Not(bits), dtype)


def count_trailing_zeros(value: Any) -> Expr:
    """How many bits below the lowest 1 are 0, in the integer's type; of 0 its width."""
    bits, dtype = _bits_of("count_trailing_zeros", value)
    below = nodes.And(nodes.Not(bits), nodes.Sub(bits, nodes.const(1, bits.dtype)))
    return _count(below, dtype)


def concat_bits(parts: Sequence[Any]) -> Expr:
    """The bits of integers of one type next to one another, the first lowest, as one unsigned.

    Raises InputError unless there are 1, 2, 4 or 8 of them, of 64 bits together at most.
    """
    exprs = [as_expr(p) for p in parts]
    found = {e.dtype for e in exprs}
    width = sum(e.dtype.bits for e in exprs)
    if len(found) != 1 or width not in (8, 16, 32, 64):
        raise InputError(
            f"concat_bits of {', '.join(str(e.dtype) for e in exprs)}",
            hint="give 1, 2, 4 or 8 integers of one type, of 64 bits together at most",
        )
    whole = _unsigned(exprs[0].dtype, width)
    total: nodes.Expr = nodes.const(0, whole)
    for n, e in enumerate(exprs):
        bits, dtype = _bits_of("concat_bits", e)
        part = as_value(cast_to(Expr(bits), whole))
        total = nodes.Or(total, nodes.Shl(part, nodes.const(n * dtype.bits, whole)))
    return Expr(total, whole)


def extract_bits(type: Type | DType, value: Any, lsb: Any) -> Expr:
    """The bits of an integer from `lsb` on, as a type; bits beyond either end are 0."""
    bits, dtype = _bits_of("extract_bits", value)
    wanted = plain(type)
    by = as_expr(lsb)
    width = max(dtype.bits, wanted.bits)
    whole = cast_to(Expr(bits), _unsigned(dtype, width))
    return cast_to(whole >> by, wanted)
