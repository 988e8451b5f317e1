"""Bounds of a node from those of its parts, one rule for each kind that is not linear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.expr.intervals import (
    ANY,
    Interval,
    is_above,
    is_below,
    is_real,
    maximum,
    minimum,
    natural,
    plus,
    product,
    scaled,
)
from tilewright.expr.nodes import (
    INDEX,
    Add,
    And,
    Call,
    Cast,
    Const,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Neg,
    Not,
    Or,
    Overlap,
    Shl,
    Shr,
    Sub,
)
from tilewright.expr.real_bounds import real_bounds, truncated

# The bounds of a part.
Of = Callable[[Expr], Interval]
Rule = Callable[[Any, Of], Interval]


def _arith(
    combine: Callable[[Interval, Interval], Interval],
) -> Rule:
    return lambda e, of: combine(of(e.lhs), of(e.rhs))


def _divisor(e: FloorDiv | Mod) -> int | None:
    """The divisor, where it is a positive number."""
    if not isinstance(e.rhs, Const):
        return None
    divisor = int(e.rhs.value.real)
    return divisor if divisor > 0 else None


def _floordiv(e: FloorDiv, of: Of) -> Interval:
    c = _divisor(e)
    if c is None:
        return _by_unknown(e, of)
    lo, hi = of(e.lhs)
    least = None if lo is None else lo // c
    most = None if hi is None else hi // c
    return (least, most)


def _by_unknown(e: FloorDiv, of: Of) -> Interval:
    """By a divisor that is only known to be at least some positive number."""
    by = of(e.rhs)[0]
    if by is None or by <= 0:
        return ANY
    lo, hi = of(e.lhs)
    least = None if lo is None else min(lo // by, 0)
    most = None if hi is None else max(hi // by, -1)
    return (least, most)


def _mod(e: Mod, of: Of) -> Interval:
    c = _divisor(e)
    if c is None:
        low, high = of(e.rhs)
        is_positive = low is not None and low > 0
        return (0, None if high is None else high - 1) if is_positive else ANY
    lo, hi = of(e.lhs)
    if lo is not None and hi is not None and lo // c == hi // c:
        return (lo % c, hi % c)
    return (0, c - 1)


def _and(e: And, of: Of) -> Interval:
    a = of(e.lhs)
    b = of(e.rhs)
    if e.dtype.is_bool:
        return minimum(a, b)
    tops = [hi for lo, hi in (a, b) if lo is not None and lo >= 0]
    if not tops:
        return natural(e.dtype)
    known = [top for top in tops if top is not None]
    return (0, min(known, default=None))


def _or(e: Or, of: Of) -> Interval:
    if not e.dtype.is_bool:
        return natural(e.dtype)
    return maximum(of(e.lhs), of(e.rhs))


def _shl(e: Shl, of: Of) -> Interval:
    amount = _amount(e)
    if amount is None:
        return natural(e.dtype)
    return scaled(of(e.lhs), 1 << amount)


def _shr(e: Shr, of: Of) -> Interval:
    amount = _amount(e)
    if amount is None:
        return natural(e.dtype)
    lo, hi = of(e.lhs)
    least = None if lo is None else lo >> amount
    most = None if hi is None else hi >> amount
    return (least, most)


def _amount(e: Shl | Shr) -> int | None:
    """How far a shift moves the bits, where that is a number below the width."""
    if not isinstance(e.rhs, Const):
        return None
    amount = int(e.rhs.value.real)
    return amount if 0 <= amount < e.dtype.bits else None


def _not(e: Not, of: Of) -> Interval:
    if e.dtype.kind == "uint":
        return natural(e.dtype)
    lo, hi = of(e.value)
    base = 1 if e.dtype.is_bool else -1
    least = None if hi is None else base - hi
    most = None if lo is None else base - lo
    return (least, most)


def _cast(e: Cast, of: Of) -> Interval:
    if is_real(e.value.dtype):
        if e.dtype.is_bool:
            return (0, 1)
        return truncated(real_bounds(e.value, of), e.dtype)
    lo, hi = of(e.value)
    if e.dtype.is_bool:
        if lo == hi == 0:
            return (0, 0)
        never_zero = is_above(lo, 0) or is_below(hi, 0)
        return (int(never_zero), 1)
    wraps = is_above(hi, int(INDEX.max))  # a uint64
    if e.dtype is INDEX and wraps:
        return ANY
    return (lo, hi)


def _call(e: Call, of: Of) -> Interval:
    if e.function != "abs":
        return natural(e.dtype)
    lo, hi = of(e.args[0])
    if lo is None or hi is None:
        return (0, None)
    return (max(lo, -hi, 0), max(-lo, hi))


RULES: Mapping[type[Expr], Rule] = {
    Add: _arith(plus),
    Sub: _arith(lambda a, b: plus(a, scaled(b, -1))),
    Mul: _arith(product),
    Neg: lambda e, of: scaled(of(e.value), -1),
    FloorDiv: _floordiv,
    Mod: _mod,
    Min: _arith(minimum),
    Overlap: _arith(minimum),
    Max: _arith(maximum),
    And: _and,
    Or: _or,
    Shl: _shl,
    Shr: _shr,
    Not: _not,
    Cast: _cast,
    Call: _call,
}
