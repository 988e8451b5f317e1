"""Bounds of float expressions: intervals whose ends are widened for every rounding.

An interval contains the exact result of an operation on anything in its operands' intervals, and
that result rounded: so it holds also where a product and a sum become one operation. What is not
decided here is `ANY`: every float, and NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.expr.nodes import (
    Add,
    Call,
    Cast,
    Const,
    Div,
    Expr,
    Max,
    Min,
    Mul,
    Neg,
    Select,
    Sub,
)
from tilewright.ir.node import postorder

# From an integer or bool expression its inclusive bounds, None where unknown.
Whole = Callable[[Expr], tuple[int | None, int | None]]

# By dtype, more than the relative error of one operation, of a division by a reciprocal too.
_ERROR: Mapping[str, float] = {
    "float64": 2.0**-50,
    "float32": 2.0**-21,
    "float16": 2.0**-8,
    "bfloat16": 2.0**-5,
}
# By dtype, the least positive number, which a denormal result may be off by.
_LEAST: Mapping[str, float] = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
}


@dataclass(frozen=True, slots=True)
class Reals:
    """The values `lo .. hi`, ends included, and NaN where `nan`."""

    lo: float
    hi: float
    nan: bool


ANY = Reals(-math.inf, math.inf, True)


def real_bounds(e: Expr, whole: Whole) -> Reals:
    """The values of a float expression; linear in the number of its distinct nodes."""
    found: dict[Any, Reals] = {}
    for node in postorder(e):
        if not isinstance(node, Expr) or node.dtype.name not in _ERROR:
            continue
        rule = _RULES.get(type(node))
        found[node] = ANY if rule is None else rule(node, found, whole)
    return found.get(e, ANY)


def rounding_error(e: Expr, whole: Whole) -> float:
    """A bound above the rounding error of a float operation."""
    found = real_bounds(e, whole)
    largest = max(abs(found.lo), abs(found.hi))
    return largest * _ERROR[e.dtype.name] + _LEAST[e.dtype.name]


def truncated(found: Reals, dtype: DType) -> tuple[int, int]:
    """The bounds of a cast to an integer: it truncates and saturates, and NaN becomes 0."""
    least, most = int(dtype.min), int(dtype.max)
    lo = least if found.lo < least else min(math.trunc(min(found.lo, most)), most)
    hi = most if found.hi > most else max(math.trunc(max(found.hi, least)), least)
    return (min(lo, 0), max(hi, 0)) if found.nan else (lo, hi)


Found = Mapping[Any, Reals]


def _const(
    e: Const,
    found: Found,
    whole: Whole,
) -> Reals:
    import numpy as np

    with np.errstate(over="ignore"):
        value = float(np.array(e.value.real).astype(e.dtype.numpy))
    return ANY if math.isnan(value) else Reals(value, value, False)


def _cast(
    e: Cast,
    found: Found,
    whole: Whole,
) -> Reals:
    if e.value in found:
        source = found[e.value]
        return _rounded([source.lo, source.hi], e.dtype, source.nan)
    if not (e.value.dtype.is_int or e.value.dtype.is_bool):
        return ANY
    lo, hi = whole(e.value)
    least = -math.inf if lo is None else float(lo)
    most = math.inf if hi is None else float(hi)
    return _rounded([least, most], e.dtype, False)


def _corners(
    operation: Callable[[float, float], float],
) -> Callable[[Any, Found, Whole], Reals]:
    """A rule for an operation that is monotone in each operand."""

    def rule(
        e: Any,
        found: Found,
        whole: Whole,
    ) -> Reals:
        a, b = found[e.lhs], found[e.rhs]
        ends = [operation(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        if any(map(math.isnan, ends)):
            return ANY
        return _rounded(ends, e.dtype, a.nan or b.nan)

    return rule


def _product(
    e: Mul,
    found: Found,
    whole: Whole,
) -> Reals:
    a, b = found[e.lhs], found[e.rhs]
    for one, other in ((a, b), (b, a)):
        if one.lo <= 0 <= one.hi and math.inf in (-other.lo, other.hi):
            return ANY  # zero times infinity, which need not be a product of ends
    return _corners(lambda x, y: x * y)(e, found, whole)


def _quotient(
    e: Div,
    found: Found,
    whole: Whole,
) -> Reals:
    divisor = found[e.rhs]
    if divisor.lo <= 0 <= divisor.hi:
        return ANY
    return _corners(lambda x, y: x / y)(e, found, whole)


def _chosen(better: Callable[[float, float], float]) -> Callable[..., Reals]:
    def rule(
        e: Any,
        found: Found,
        whole: Whole,
    ) -> Reals:
        a, b = found[e.lhs], found[e.rhs]
        return Reals(better(a.lo, b.lo), better(a.hi, b.hi), a.nan or b.nan)

    return rule


def _negated(
    e: Neg,
    found: Found,
    whole: Whole,
) -> Reals:
    a = found[e.value]
    return Reals(-a.hi, -a.lo, a.nan)


def _select(
    e: Select,
    found: Found,
    whole: Whole,
) -> Reals:
    a, b = found[e.then], found[e.otherwise]
    return Reals(min(a.lo, b.lo), max(a.hi, b.hi), a.nan or b.nan)


def _call(
    e: Call,
    found: Found,
    whole: Whole,
) -> Reals:
    a = found.get(e.args[0], ANY)
    if e.function == "abs":
        least = max(a.lo, -a.hi, 0.0)
        return Reals(least, max(-a.lo, a.hi), a.nan)
    if e.function == "sqrt":
        if a.lo < 0:
            return ANY
        return _rounded([math.sqrt(a.lo), math.sqrt(a.hi)], e.dtype, a.nan)
    whole_number = _ROUNDINGS.get(e.function)
    if whole_number is None:
        return ANY
    lo, hi = (x if math.isinf(x) else float(whole_number(x)) for x in (a.lo, a.hi))
    return Reals(lo, hi, a.nan)


# Each gives a whole number of the operand's dtype, and is monotone.
_ROUNDINGS: Mapping[str, Callable[[float], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round_even": round,
}

_RULES: Mapping[type[Expr], Callable[[Any, Found, Whole], Reals]] = {
    Const: _const,
    Cast: _cast,
    Add: _corners(lambda x, y: x + y),
    Sub: _corners(lambda x, y: x - y),
    Mul: _product,
    Div: _quotient,
    Min: _chosen(min),
    Max: _chosen(max),
    Neg: _negated,
    Select: _select,
    Call: _call,
}


def _rounded(ends: list[float], dtype: DType, nan: bool) -> Reals:
    """The hull of these results, widened by the error of an operation; an end of 0 is exact.

    Rounding is monotone, so a nonnegative result does not become negative. Operands may be infinite
    only if an end is, or if a finite result is too large for the dtype.
    """
    error, least, most = _ERROR[dtype.name], _LEAST[dtype.name], float(dtype.max)
    lo, hi = min(ends), max(ends)
    if lo and math.isfinite(lo):
        lo -= abs(lo) * error + least
    if hi and math.isfinite(hi):
        hi += abs(hi) * error + least
    return Reals(-math.inf if lo < -most else lo, math.inf if hi > most else hi, nan)
