"""Integer arithmetic that widens, halves, saturates or rounds, lerp, and tests of floats.

As Halide defines them: a wider type holds the exact result, and what narrows it again says how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base import dtypes
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.lang.halide.syntax.expr import (
    Expr,
    as_expr,
    as_value,
    cast_to,
    constant,
    divided,
    shifted,
    together,
)
from tilewright.lang.halide.syntax.intrinsics import (
    abs,
    caster,
    clamp,
    floor,
    saturating_cast,
    select,
    sqrt,
    trunc,
)
from tilewright.lang.halide.syntax.intrinsics import (
    max as max_,
)
from tilewright.lang.halide.syntax.types import Type, plain


def _wider(dtype: DType, signed: bool) -> DType:
    if not dtype.is_int or dtype.bits > 32:
        raise InputError(
            f"{dtype} has no wider type", hint="cast to a type of 8, 16 or 32 bits"
        )
    return dtype_of(f"{'int' if signed else 'uint'}{2 * dtype.bits}")


def _pair(a: Any, b: Any, signed: bool | None = None) -> tuple[Expr, Expr]:
    """Both operands in the type that holds every result of them."""
    left = as_expr(a)
    right = as_expr(b)
    if isinstance(right.node, nodes.Const):
        right = cast_to(right, left.dtype)
    if isinstance(left.node, nodes.Const):
        left = cast_to(left, right.dtype)
    either = left.dtype.is_signed or right.dtype.is_signed
    narrow = max((left.dtype, right.dtype), key=lambda t: t.bits)
    wide = _wider(narrow, either if signed is None else signed)
    return cast_to(left, wide), cast_to(right, wide)


def widening_add(a: Any, b: Any) -> Expr:
    """`a + b` in a type of twice the width."""
    left, right = _pair(a, b)
    return left + right


def widening_sub(a: Any, b: Any) -> Expr:
    """`a - b` in a signed type of twice the width."""
    left, right = _pair(a, b, signed=True)
    return left - right


def widening_mul(a: Any, b: Any) -> Expr:
    """`a * b` in a type of twice the width."""
    left, right = _pair(a, b)
    return left * right


def _as_left(a: Any, value: Expr) -> Expr:
    return cast_to(value, as_expr(a).dtype)


def halving_add(a: Any, b: Any) -> Expr:
    """`(a + b) / 2` without overflow, rounded down."""
    return _as_left(a, widening_add(a, b) / 2)


def rounding_halving_add(a: Any, b: Any) -> Expr:
    """`(a + b + 1) / 2` without overflow."""
    return _as_left(a, (widening_add(a, b) + 1) / 2)


def halving_sub(a: Any, b: Any) -> Expr:
    """`(a - b) / 2` without overflow, rounded down."""
    return _as_left(a, widening_sub(a, b) / 2)


def saturating_add(a: Any, b: Any) -> Expr:
    """`a + b`, an end of the type where it is beyond."""
    return saturating_cast(as_expr(a).dtype, widening_add(a, b))


def saturating_sub(a: Any, b: Any) -> Expr:
    """`a - b`, an end of the type where it is beyond."""
    return saturating_cast(as_expr(a).dtype, widening_sub(a, b))


def mul_shift_right(a: Any, b: Any, shift: int) -> Expr:
    """`a * b >> shift` of the wide product, an end of the type where it is beyond."""
    return saturating_cast(as_expr(a).dtype, widening_mul(a, b) >> shift)


def rounding_mul_shift_right(a: Any, b: Any, shift: int) -> Expr:
    """As `mul_shift_right`, to the nearest."""
    wide = widening_mul(a, b) + ((1 << shift) >> 1)
    return saturating_cast(as_expr(a).dtype, wide >> shift)


def rounding_shift_right(a: Any, shift: Any) -> Expr:
    """`a >> shift`, to the nearest, an end of the type where it is beyond."""
    e = as_expr(a)
    by = as_expr(shift)
    if not isinstance(by.node, nodes.Const) and by.dtype.bits > e.dtype.bits:
        e = cast_to(
            e, dtype_of(f"{'int' if e.dtype.is_signed else 'uint'}{by.dtype.bits}")
        )
    wide = cast_to(e, _wider(e.dtype, e.dtype.is_signed))
    half = (cast_to(1, wide.dtype) << max_(shift, 0)) >> 1
    return saturating_cast(e.dtype, (wide + half) >> shift)


def rounding_shift_left(a: Any, shift: Any) -> Expr:
    """`a << shift`, an end of the type where it is beyond; rounded where `shift` is negative."""
    by = as_expr(shift)
    if isinstance(by.node, nodes.Const):
        return rounding_shift_right(a, -constant(by))
    return rounding_shift_right(a, -by)


def _widened(value: Any) -> Expr:
    e = as_expr(value)
    return cast_to(e, _wider(e.dtype, e.dtype.is_signed))


def widening_shift_left(a: Any, b: Any) -> Expr:
    """`a << b` in a type of twice the width."""
    return shifted(nodes.Shl, _widened(a), b)


def widening_shift_right(a: Any, b: Any) -> Expr:
    """`a >> b` in a type of twice the width."""
    return shifted(nodes.Shr, _widened(a), b)


def widen_right_add(a: Any, b: Any) -> Expr:
    """`a + b`, where b has half the width of a."""
    return as_expr(a) + _widened(b)


def widen_right_sub(a: Any, b: Any) -> Expr:
    """`a - b`, where b has half the width of a."""
    return as_expr(a) - _widened(b)


def widen_right_mul(a: Any, b: Any) -> Expr:
    """`a * b`, where b has half the width of a."""
    return as_expr(a) * _widened(b)


def _saturating(*names: str) -> list[Callable[[Any], Expr]]:
    how = ", an end of it where it is beyond"
    return [
        caster(name, lambda value, dtype: saturating_cast(dtype, value), how)
        for name in names
    ]


u8_sat, u16_sat, u32_sat, u64_sat = _saturating("uint8", "uint16", "uint32", "uint64")
i8_sat, i16_sat, i32_sat, i64_sat = _saturating("int8", "int16", "int32", "int64")


def div_round_to_zero(a: Any, b: Any) -> Expr:
    """`a / b` of integers as C has it."""
    (lhs, rhs), type_ = together((a, b))
    exact = nodes.Sub(lhs, nodes.Rem(lhs, rhs))
    return divided(Expr(exact, type_), Expr(rhs, type_))


def mod_round_to_zero(a: Any, b: Any) -> Expr:
    """`a % b` of integers as C has it, with the sign of `a`."""
    (lhs, rhs), type_ = together((a, b))
    return Expr(nodes.Rem(lhs, rhs), type_)


def lerp(zero: Any, one: Any, weight: Any) -> Expr:
    """From `zero` at weight 0 to `one` at weight 1; of an integer weight the greatest means 1."""
    (a, b), type_ = together((zero, one))
    w = as_expr(weight)
    if isinstance(w.node, nodes.Const) and not w.dtype.is_float:
        w = cast_to(w, type_ if type_.is_int else dtypes.float32)
    least = Expr(a, type_)
    most = Expr(b, type_)
    if (
        type_.is_int
        and type_.bits <= 16
        and (w.dtype.is_float or w.dtype.bits <= type_.bits)
    ):
        return _lerp_of_integers(least, most, w)
    real = type_ if type_.is_float else dtypes.float64
    part = cast_to(w, real)
    if w.dtype.is_int:
        part = part / float(w.dtype.max)
    rest = cast_to(1.0, real) - part
    mixed = cast_to(least, real) * rest + cast_to(most, real) * part
    if type_.is_float:
        return mixed
    return cast_to(floor(mixed + 0.5), type_)


def _lerp_of_integers(least: Expr, most: Expr, weight: Expr) -> Expr:
    """In whole steps of the type: a float weight is one of them."""
    type_ = least.dtype
    low = int(type_.min)
    top = int(type_.max) - int(type_.min)
    if weight.dtype.is_float:
        part = cast_to(weight * float(top), dtypes.int64)
    else:
        part = cast_to(weight, dtypes.int64) * (top // int(weight.dtype.max))
    first = cast_to(least, dtypes.int64) - low
    last = cast_to(most, dtypes.int64) - low
    weighed = first * (top - part) + last * part
    rounded = (weighed + top // 2) / top
    return cast_to(rounded + low, type_)


def mux(index: Any, values: Sequence[Any]) -> Expr:
    """The value at a place of a list; the last one beyond its end."""
    found = as_expr(values[-1])
    for n, value in reversed(list(enumerate(values[:-1]))):
        found = select(as_expr(index) == n, value, found)
    return found


def hypot(x: Any, y: Any) -> Expr:
    """The square root of x*x + y*y."""
    a = as_expr(x)
    b = as_expr(y)
    return sqrt(a * a + b * b)


def fract(x: Any) -> Expr:
    """The part of a float after the point, with its sign."""
    return as_expr(x) - trunc(x)


def atan2(y: Any, x: Any) -> Expr:
    """The angle of the point (x, y)."""
    (a, b), type_ = together((y, x))
    return Expr(nodes.Call("arctan2", (a, b)), type_)


def is_nan(x: Any) -> Expr:
    """Whether a float is not a number."""
    return Expr(nodes.Call("isnan", (as_value(as_expr(x)),)), dtypes.bool_)


def is_inf(x: Any) -> Expr:
    """Whether a float is infinite."""
    return abs(x) == cast_to(float("inf"), as_expr(x).dtype)


def is_finite(x: Any) -> Expr:
    """Whether a float is neither infinite nor no number."""
    return abs(x) < cast_to(float("inf"), as_expr(x).dtype)


def reinterpret(type: Type | DType, value: Any) -> Expr:
    """The bits of a value as another type of the same width."""
    e = as_expr(value)
    dtype = plain(type)
    if e.dtype.bits != dtype.bits:
        raise InputError(
            f"reinterpret of {e.dtype} as {dtype}", hint="types of one width"
        )
    return Expr(nodes.Bitcast(as_value(e), dtype), dtype)


def logical_not(value: Any) -> Expr:
    """The opposite of a condition."""
    return ~as_expr(value)


def unsafe_promise_clamped(value: Any, low: Any, high: Any) -> Expr:
    """`clamp`: this keeps the promise for any value."""
    return clamp(value, low, high)
