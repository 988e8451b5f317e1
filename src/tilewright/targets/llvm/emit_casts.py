"""Casts to values: a table of special forms, each in fewer instructions than a plain conversion."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tilewright.base import dtypes
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, Cast, Const, Expr, Max, Min, Shr
from tilewright.expr.real_bounds import ANY, real_bounds
from tilewright.targets.llvm.emit_bits import HALF, WORD, few_bits, from_table, in_place
from tilewright.targets.llvm.emit_memory import MemoryEmitter
from tilewright.targets.llvm.emit_rounding import (
    dequantized,
    rounding,
    to_float,
    to_integer,
)
from tilewright.targets.llvm.emit_text import LlvmValue
from tilewright.targets.llvm.emit_types import constant


class CastForm(NamedTuple):
    """One row of the table.

    form: what it is. match: what a cast has of this form; None if it is of another one. emit: the
    value, from what `match` found.
    """

    form: str
    match: Callable[[MemoryEmitter, Cast], Any]
    emit: Callable[[MemoryEmitter, Cast, Any], LlvmValue]


def cast(x: MemoryEmitter, e: Cast) -> LlvmValue:
    """The value of a cast, by the first row that matches it."""
    for row in CASTS:
        found = row.match(x, e)
        if found is not None:
            return row.emit(x, e, found)
    return _plain(x, e, x.value(e.value))


def of_few_bits(x: MemoryEmitter, e: Expr) -> LlvmValue | None:
    """Numbers of few bits extracted from a vector of words, as floats; None for other
    expressions."""
    b = few_bits(e)
    if b is None:
        return None
    lanes, shift = x.value(b.word).lanes, x.value(b.shift).const
    if lanes == 1 or not isinstance(shift, int) or not 0 <= shift < WORD:
        return None
    if b.in_table(x.machine, shift, lanes):
        return from_table(x.ops, x.value(b.shifted), b)
    if b.less is None:
        return None
    base = shift // HALF * HALF
    half = x.value(Shr(b.word, Const(base, b.word.dtype)) if base else b.word)
    return in_place(x.ops, half, shift - base, b)


def _plain(
    x: MemoryEmitter, e: Cast, v: LlvmValue, source: dtypes.DType | None = None
) -> LlvmValue:
    """The conversion of a value, by what is known of the expression; source: its dtype."""
    known = ANY
    if e.value.dtype.is_float and e.dtype.is_int:
        known = real_bounds(e.value, lambda part: bounds(part, x.ranges))
    return x.ops.cast(v, source or e.value.dtype, e.dtype, known)


# -- clamped floats


class _Clamp(NamedTuple):
    """A float `max(inner, low)`, then the least of that and of each number of `tops`."""

    inner: Expr
    low: float
    tops: tuple[float, ...] = ()


def _clamped(x: MemoryEmitter, e: Cast) -> _Clamp | None:
    return _clamp(e.value) if e.dtype.is_int else None


def _clamp(e: Expr) -> _Clamp | None:
    """The clamp of a float by constants, a low one with -1 < low < 1 and others of at least 0.

    The cast of NaN is 0, and so is that of `low`: if the maximum yields `low` for NaN, as the
    processor's instruction does, the cast need not test for it, as LLVM sees.
    """
    if not isinstance(e, Max | Min):
        return None
    inner, bound = (e.lhs, e.rhs) if isinstance(e.rhs, Const) else (e.rhs, e.lhs)
    # As a register holds it: what is below 1 may round to 1.
    limit = constant(bound.value, e.dtype).const if isinstance(bound, Const) else None
    if not isinstance(limit, float) or math.isnan(limit):
        return None
    if isinstance(e, Max):
        is_number = isinstance(inner, Const)
        return _Clamp(inner, limit) if -1 < limit < 1 and not is_number else None
    rest = _clamp(inner) if limit >= 0 else None
    return None if rest is None else rest._replace(tops=(*rest.tops, limit))


def _without_test(x: MemoryEmitter, e: Cast, found: _Clamp) -> LlvmValue:
    v = x.ops.at_least(x.value(found.inner), found.low)
    for top in found.tops:
        v = x.ops.at_most(v, top)
    return _plain(x, e, v)


# -- indices


def _short(x: MemoryEmitter, e: Cast) -> Expr | None:
    """An index that fits 32 bits, to be cast to a float."""
    if not e.dtype.is_float or e.value.dtype is not INDEX:
        return None
    low, high = bounds(e.value, x.ranges)
    fits = low is not None and high is not None and low >= -(1 << 31) and high < 1 << 31
    return e.value if fits else None


def _from_32_bits(x: MemoryEmitter, e: Cast, found: Expr) -> LlvmValue:
    """In vectors: few processors convert those of 64 bits."""
    v = x.value(found)
    if v.lanes == 1:
        return _plain(x, e, v)
    v = x.ops.cast(v, INDEX, dtypes.int32)
    return x.ops.cast(v, dtypes.int32, e.dtype)


def _position(x: MemoryEmitter, e: Cast) -> Expr | None:
    """A float, cast to a signed integer of 32 bits that is not negative, and then to an index."""
    inner = e.value
    if e.dtype is not INDEX or not isinstance(inner, Cast):
        return None
    if inner.dtype is not dtypes.int32 or not inner.value.dtype.is_float:
        return None
    low, _ = bounds(inner, x.ranges)
    return inner if low is not None and low >= 0 else None


def _from_unsigned(x: MemoryEmitter, e: Cast, found: Expr) -> LlvmValue:
    """One instruction less for a scalar: writing 32 bits of a register clears the others."""
    v = x.value(found)
    return _plain(x, e, v, dtypes.uint32 if v.lanes == 1 else dtypes.int32)


CASTS = (
    CastForm(
        "a float rounded to an integer of 16 bits at most",
        lambda x, e: rounding(e, x.machine),
        lambda x, e, r: to_integer(x.ops, x.value(r.value), r),
    ),
    CastForm(
        "such an integer as a float",
        lambda x, e: dequantized(e, x.machine),
        lambda x, e, found: to_float(x.ops, x.value(found[0].value), *found),
    ),
    CastForm("few bits of a word as a float", of_few_bits, lambda x, e, v: v),
    CastForm("a clamped float as an integer", _clamped, _without_test),
    CastForm("an index of 32 bits as a float", _short, _from_32_bits),
    CastForm("a position that a float gives", _position, _from_unsigned),
)
