"""arcsin, arccos, arctan and arctan2: one odd polynomial each after a reduction to its interval."""

from __future__ import annotations

from tilewright.expr.nodes import Expr, Select
from tilewright.targets.llvm.math.circular_coefficients import ARCSIN, ARCTAN
from tilewright.targets.llvm.math.parts import (
    at_least,
    fma,
    magnitude,
    number,
    polynomial,
    sign_mask,
    signed_bits,
    sqrt,
    with_sign_of,
    xor_sign,
)

# pi / 2 = high + low
HALF_PI = {
    "float32": (1.5707963705062866, -4.371138828673793e-08),
    "float64": (1.5707963267948966, 6.123233995736766e-17),
}


def _arcsin_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(large, s, t): arcsin(s) = s + t; s is |x|, or sqrt((1 - |x|) / 2) where |x| is large."""
    y = magnitude(x)
    large = y > 0.5
    z = Select(large, fma(y, -0.5, 0.5), y * y)
    s = Select(large, sqrt(z), y)
    return large, s, polynomial(z, ARCSIN[x.dtype.name]) * z * s


def arcsin(x: Expr) -> Expr:
    """pi/2 - 2 arcsin(sqrt((1 - |x|) / 2)) above a half, with the sign of x."""
    large, s, t = _arcsin_parts(x)
    high, low = HALF_PI[x.dtype.name]
    far = fma(s, -2.0, high) + fma(t, -2.0, low)
    return with_sign_of(Select(large, far, s + t), x)


def arccos(x: Expr) -> Expr:
    """pi/2 - arcsin(x), or 2 arcsin(sqrt((1 - |x|) / 2)) above a half, pi minus that below -1/2."""
    large, s, t = _arcsin_parts(x)
    high, low = HALF_PI[x.dtype.name]
    sign = sign_mask(x)
    # What is added to +-(s + t) once or twice: 0, pi or pi/2.
    count = Select(
        large, Select(x < 0.0, number(2.0, x), number(0.0, x)), number(1.0, x)
    )
    twice = Select(large, number(2.0, x), number(-1.0, x))
    factor = xor_sign(twice, sign)
    return fma(factor, s, count * high) + fma(factor, t, count * low)


def arctan(x: Expr) -> Expr:
    """pi/2 - arctan(1 / |x|) above 1, with the sign of x."""
    y = magnitude(x)
    large = y > 1.0
    one = number(1.0, x)
    q = Select(large, one, y) / at_least(y, 1.0)
    return with_sign_of(_from_ratio(q, large), x)


def _from_ratio(q: Expr, swapped: Expr) -> Expr:
    """arctan(q) for 0 <= q <= 1, or pi/2 minus that."""
    high, low = HALF_PI[q.dtype.name]
    zero = number(0.0, q)
    z = q * q
    t = polynomial(z, ARCTAN[q.dtype.name]) * z * q
    near = Select(swapped, -q, q)
    rest = Select(swapped, number(low, q) - t, t)
    return (Select(swapped, number(high, q), zero) + near) + rest


def arctan2(y: Expr, x: Expr) -> Expr:
    """The angle of the point (x, y) as C's Annex F defines it, zeros and infinities included."""
    a = magnitude(y)
    b = magnitude(x)
    swapped = b < a
    small = Select(swapped, b, a)
    large = Select(swapped, a, b)
    one = number(1.0, x)
    zero = number(0.0, x)
    q = Select(small.eq(large), Select(large.eq(0.0), zero, one), small / large)
    first = _from_ratio(q, swapped)
    high, low = HALF_PI[x.dtype.name]
    behind = signed_bits(x) < 0
    angle = Select(behind, (number(2 * high, x) - first) + 2 * low, first)
    return with_sign_of(angle, y)
