"""sin, cos and tan over the whole range, without tables in memory and without branches.

float32 goes through float64: x * 2/pi modulo 4 as a sum of exact products. A float32 has 24 bits
and the parts of 2/pi have 29, so each product is exact and so is what remains modulo 4; the last
part has 53 bits. One `Select` moves arguments from 2**76 on (they are multiples of 2**53) down by
2**52, with the parts of 2**52 * 2/pi modulo 4, so that the same number of parts is enough.

float64 subtracts a multiple of pi/2 in three parts up to 2**20, and beyond takes the integer
product of `payne_hanek`; it keeps the reduced argument as a sum of two numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base import dtypes
from tilewright.expr.nodes import And, Call, Cast, Expr, Select, Shl, const
from tilewright.targets.llvm.math.circular_coefficients import (
    COS,
    COS_FOR_FLOAT32,
    SIN,
    SIN_FOR_FLOAT32,
)
from tilewright.targets.llvm.math.parts import (
    bits,
    fma,
    format_of,
    magnitude,
    number,
    polynomial,
    sign_mask,
    xor_sign,
)
from tilewright.targets.llvm.math.payne_hanek import quarter_turns_of_large

# For an argument x >= 0: n (an integer of which the lowest two bits count) and the sine and the
# cosine of x - n * pi/2.
Quadrant = tuple[Expr, Expr, Expr]

ROUNDER = format_of(dtypes.float64).rounder
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)

# (part of 2/pi, part of 2**52 * 2/pi modulo 4): three of 29 bits, one of 53.
TURN_PARTS = (
    (0.6366197727620602, 1.322750236839056),
    (-3.9447882200366324e-10, 1.277951345440842e-09),
    (-3.2607514111347406e-19, 7.513295656362443e-19),
    (2.2665978049569947e-28, 5.219092514020248e-28),
)


def _without_integer(x: Expr) -> tuple[Expr, Expr]:
    """(an integer with n in its low bits, x - n) for n = x rounded, |x| < 2**50."""
    t = x + ROUNDER
    return bits(t), x - (t - ROUNDER)


def _quadrant32(x: Expr) -> Quadrant:
    """The quadrant of a float64 x with 24 significant bits below 2**128, to float32's precision."""
    far = x >= 2.0**76
    y = Select(far, x * 2.0**-52, x)

    def product(i: int) -> Expr:
        near_part, far_part = TURN_PARTS[i]
        return y * Select(far, number(far_part, x), number(near_part, x))

    def modulo_4(p: Expr) -> Expr:
        return fma(Call("round_even", (p * 0.25,)), -4.0, p)

    n, f = _without_integer(modulo_4(product(0)) + modulo_4(product(1)))
    carry, f = _without_integer(f + modulo_4(product(2)))
    r = (f + product(3)) * HALF_PI[0]
    z = r * r
    return (
        n + carry,
        polynomial(z, (1.0, *SIN_FOR_FLOAT32)) * r,
        polynomial(z, (1.0, *COS_FOR_FLOAT32)),
    )


def _quadrant64(y: Expr) -> Quadrant:
    """The quadrant of a float64 y >= 0."""
    t = fma(y, 0.6366197723675814, ROUNDER)
    turns = t - ROUNDER
    first = fma(turns, -HALF_PI[0], y)
    second = turns * HALF_PI[1]
    near = first - second
    lost = ((first - near) - second) - fma(turns, HALF_PI[1], -second)
    near_low = fma(turns, -HALF_PI[2], lost)

    n, f, g = quarter_turns_of_large(y)
    far = f * HALF_PI[0]
    far_low = fma(f, HALF_PI[0], -far) + fma(f, HALF_PI[1], g * HALF_PI[0])

    is_far = (y >= 2.0**20) & (y < float("inf"))
    r = Select(is_far, far, near)
    low = Select(is_far, far_low, near_low)
    return Select(is_far, n, bits(t)), *_sin_cos(r, low)


def _sin_cos(r: Expr, low: Expr) -> tuple[Expr, Expr]:
    """The sine and the cosine of r + low, |r| <= pi/4."""
    z = r * r
    sin = r + fma(polynomial(z, SIN) * z, r, low)
    half = z * 0.5
    main = number(1.0, r) - half
    lost = (number(1.0, r) - main) - half
    cos = main + (lost + fma(polynomial(z, COS), z * z, -(r * low)))
    return sin, cos


def _sin(quadrant: Callable[[Expr], Quadrant], x: Expr) -> Expr:
    n, sin, cos = quadrant(magnitude(x))
    return xor_sign(_turned(n, sin, cos), sign_mask(x))


def _cos(quadrant: Callable[[Expr], Quadrant], x: Expr) -> Expr:
    n, sin, cos = quadrant(magnitude(x))
    return _turned(n + 1, sin, cos)


def _tan(quadrant: Callable[[Expr], Quadrant], x: Expr) -> Expr:
    n, sin, cos = quadrant(magnitude(x))
    odd = _bit(n, 0)
    quotient = Select(odd, -cos, sin) / Select(odd, sin, cos)
    return xor_sign(quotient, sign_mask(x))


def _bit(n: Expr, i: int) -> Expr:
    return And(n, const(1 << i, dtypes.uint64)).ne(0)


def _turned(n: Expr, sin: Expr, cos: Expr) -> Expr:
    """The sine of n quarter turns more."""
    flip = Shl(And(n, const(2, dtypes.uint64)), const(62, dtypes.uint64))
    return xor_sign(Select(_bit(n, 0), cos, sin), flip)


Formula = Callable[[Callable[[Expr], Quadrant], Expr], Expr]


def _versions(
    formula: Formula,
) -> tuple[Callable[[Expr], Expr], Callable[[Expr], Expr]]:
    def for_float32(x: Expr) -> Expr:
        wide = formula(_quadrant32, Cast(x, dtypes.float64))
        return Cast(wide, dtypes.float32)

    def for_float64(x: Expr) -> Expr:
        return formula(_quadrant64, x)

    return for_float32, for_float64


sin32, sin64 = _versions(_sin)
cos32, cos64 = _versions(_cos)
tan32, tan64 = _versions(_tan)
