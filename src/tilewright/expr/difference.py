"""Bounds of the difference of two index expressions that are built alike.

Intervals alone lose what the two share: `(i + 1) // 2 - i // 2` is 0 or 1, though both run far.
Here the operands are compared side by side. A float may be rounded at one place and not at the
other, where a product and a sum become one operation: that counts as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.expr.affine import affine, to_expr
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import (
    INDEX,
    Add,
    Call,
    Cast,
    Const,
    Div,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mul,
    Overlap,
    Sub,
)
from tilewright.expr.real_bounds import Whole, real_bounds, rounding_error

# The values `lo .. hi` of a difference of floats; None: unknown.
Span = tuple[float, float] | None


def difference(
    a: Expr,
    b: Expr,
    whole: Whole,
) -> Interval:
    """The least and greatest value of `a - b`, two integers, None where unknown.

    whole: bounds of an integer expression; for a sum, they use `apart` for its atoms.
    """
    if a.dtype is INDEX:
        return whole(to_expr(affine(a) - affine(b)))
    return _narrow(a, b, whole)


def _narrow(
    a: Expr,
    b: Expr,
    whole: Whole,
) -> Interval:
    """Of integers other than indices, which may wrap around unless bounds say that they do not."""
    if a is b:
        return (0, 0)
    low, high = apart(a, b, whole)
    (least, most), (first, last) = whole(a), whole(b)
    if low is None and least is not None and last is not None:
        low = least - last
    if high is None and most is not None and first is not None:
        high = most - first
    return low, high


def apart(
    a: Expr,
    b: Expr,
    whole: Whole,
) -> Interval:
    """Bounds of `a - b` from the operands of both; (None, None) if their structure differs."""
    rule = _RULES.get(type(a))
    kind = type(b)
    if rule is not None and type(a) is kind:
        return rule(a, b, whole)
    if isinstance(a, Min | Max):
        return _one_sided(a, b, whole)
    if isinstance(b, Min | Max):
        lo, hi = _one_sided(b, a, whole)
        return None if hi is None else -hi, None if lo is None else -lo
    return (None, None)


def _one_sided(
    a: Min | Max,
    b: Expr,
    whole: Whole,
) -> Interval:
    """`min(x, y) - b`: the lesser of x - b and y - b; a max likewise."""
    sides = [difference(x, b, whole) for x in (a.lhs, a.rhs)]
    lows = [lo for lo, _ in sides if lo is not None]
    highs = [hi for _, hi in sides if hi is not None]
    if isinstance(a, Min):
        return min(lows) if len(lows) == 2 else None, min(highs, default=None)
    return max(lows, default=None), max(highs) if len(highs) == 2 else None


def _quotient(
    a: FloorDiv,
    b: FloorDiv,
    whole: Whole,
) -> Interval:
    if a.rhs is not b.rhs or not isinstance(a.rhs, Const):
        return (None, None)
    d = int(a.rhs.value.real)
    if d <= 0:
        return (None, None)
    lo, hi = difference(a.lhs, b.lhs, whole)
    return None if lo is None else lo // d, None if hi is None else -(-hi // d)


def _extreme(
    a: Any,
    b: Any,
    whole: Whole,
) -> Interval:
    sides = [difference(x, y, whole) for x, y in ((a.lhs, b.lhs), (a.rhs, b.rhs))]
    lows = [lo for lo, _ in sides if lo is not None]
    highs = [hi for _, hi in sides if hi is not None]
    return (
        min(lows) if len(lows) == 2 else None,
        max(highs) if len(highs) == 2 else None,
    )


def _cast(
    a: Cast,
    b: Cast,
    whole: Whole,
) -> Interval:
    x, y = a.value, b.value
    if a.type is not b.type or x.dtype is not y.dtype:
        return (None, None)
    if not x.dtype.is_float:
        is_wider = (
            x.dtype.is_int and a.type.min <= x.dtype.min <= x.dtype.max <= a.type.max
        )
        return difference(x, y, whole) if is_wider else (None, None)
    if any(real_bounds(e, whole).nan for e in (x, y)):
        return (None, None)  # a NaN gives 0
    found = _reals(x, y, whole)
    if found is None:
        return (None, None)
    # Truncation moves both towards 0, over one more whole number at most; saturation, nearer.
    lo, hi = found
    low = max(math.floor(lo) - 1, 0) if lo >= 0 else math.floor(lo)
    high = min(math.ceil(hi) + 1, 0) if hi <= 0 else math.ceil(hi)
    return low, high


_RULES: Mapping[type[Expr], Callable[[Any, Any, Whole], Interval]] = {
    FloorDiv: _quotient,
    Min: _extreme,
    Overlap: _extreme,
    Max: _extreme,
    Cast: _cast,
}


# -- floats


def _reals(
    a: Expr,
    b: Expr,
    whole: Whole,
) -> Span:
    rule = _REALS.get(type(a))
    kind = type(b)
    if rule is None or type(a) is not kind or a.dtype is not b.dtype:
        return None
    found = rule(a, b, whole)
    if found is None or isinstance(a, Const | Min | Max | Call):
        return found
    slack = rounding_error(a, whole) + rounding_error(b, whole)
    lo, hi = found[0] - slack, found[1] + slack
    return (lo, hi) if math.isfinite(lo) and math.isfinite(hi) else None


def _number(
    a: Const,
    b: Const,
    whole: Whole,
) -> Span:
    away = float(a.value.real) - float(b.value.real)
    return (away, away)


def _from_whole(
    a: Cast,
    b: Cast,
    whole: Whole,
) -> Span:
    if not (a.value.dtype.is_int and a.value.dtype is b.value.dtype):
        return None
    lo, hi = difference(a.value, b.value, whole)
    return None if lo is None or hi is None else (float(lo), float(hi))


def _total(
    a: Any,
    b: Any,
    whole: Whole,
) -> Span:
    x, y = _reals(a.lhs, b.lhs, whole), _reals(a.rhs, b.rhs, whole)
    if x is None or y is None:
        return None
    if isinstance(a, Sub):
        y = (-y[1], -y[0])
    return (x[0] + y[0], x[1] + y[1])


def _scaled(
    a: Any,
    b: Any,
    whole: Whole,
) -> Span:
    """A product or quotient with a constant."""
    for x, y, factor, other in (
        (a.lhs, b.lhs, a.rhs, b.rhs),
        (a.rhs, b.rhs, a.lhs, b.lhs),
    ):
        if isinstance(factor, Const) and factor is other:
            found = _reals(x, y, whole)
            c = float(factor.value.real)
            if found is None or (isinstance(a, Div) and (not c or factor is a.lhs)):
                return None
            ends = [v / c if isinstance(a, Div) else v * c for v in found]
            return (min(ends), max(ends))
    return None


def _real_extreme(
    a: Any,
    b: Any,
    whole: Whole,
) -> Span:
    x, y = _reals(a.lhs, b.lhs, whole), _reals(a.rhs, b.rhs, whole)
    if x is None or y is None:
        return None
    return (min(x[0], y[0]), max(x[1], y[1]))


def _rounded(
    a: Call,
    b: Call,
    whole: Whole,
) -> Span:
    if a.function != b.function or a.function not in ("floor", "ceil"):
        return None
    found = _reals(a.args[0], b.args[0], whole)
    if found is None:
        return None
    return (float(math.floor(found[0])), float(math.ceil(found[1])))


_REALS: Mapping[type[Expr], Callable[[Any, Any, Whole], Span]] = {
    Const: _number,
    Cast: _from_whole,
    Add: _total,
    Sub: _total,
    Mul: _scaled,
    Div: _scaled,
    Min: _real_extreme,
    Max: _real_extreme,
    Call: _rounded,
}
