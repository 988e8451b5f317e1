"""exp, exp2, expm1 and sigmoid: a reduction by powers of two and one polynomial.

exp(x) = exp(r) * 2**h * 2**h with h = round(x / (2 ln 2)) and |r| <= ln 2. Twice the usual interval
costs one or two more coefficients, and saves the split of the exponent that subnormal results and
results near overflow need: both factors are always normal numbers.
"""

from __future__ import annotations

from tilewright.expr.nodes import Call, Expr, Select
from tilewright.targets.llvm.math.coefficients import (
    EXP,
    EXP2,
    EXP_SHORT,
    EXPM1,
    SIXTEENTHS,
)
from tilewright.targets.llvm.math.parts import (
    at_least,
    at_most,
    entry,
    fma,
    format_of,
    magnitude,
    number,
    polynomial,
    rounded,
    signed_bits,
)

LOG2_E = 1.4426950408889634

# ln 2 = high + low: the high part ends in enough zero bits for its product with n to be exact.
LN2 = {
    "float32": (0.693145751953125, 1.428606765330187e-06),
    "float64": (0.6931471803691238, 1.9082149292705877e-10),
}


# Beyond these arguments the result is 0 and infinity.
EXP_LIMITS = {"float32": (-104.0, 89.0), "float64": (-746.0, 710.0)}


def scaled_exp(x: Expr, factor: float = 1.0, rest: Expr | None = None) -> Expr:
    """factor * e**(x + rest) for a power of two near 1 and a small rest.

    Right as long as |x| / (2 ln 2) is an exponent of normal numbers.
    """
    high, low = LN2[x.dtype.name]
    h, power = rounded(x, LOG2_E / 2)
    r = fma(h, -2 * low, fma(h, -2 * high, x))
    if rest is not None:
        r = r + rest
    p = polynomial(r, (1.0, 1.0, *EXP[x.dtype.name]))
    return p * power * (power if factor == 1.0 else power * factor)


def exp(x: Expr) -> Expr:
    """e**x."""
    low, high = EXP_LIMITS[x.dtype.name]
    return scaled_exp(at_least(at_most(x, high), low))


def exp_by_scaling(x: Expr) -> Expr:
    """e**x of float32 as exp(r) * 2**n for n in sixteenths, |r| <= ln(2) / 32, for processors where
    `entry`, which looks up the power of the fraction, and `ldexp` are one instruction each."""
    least, most = EXP_LIMITS["float32"]
    high, low = LN2["float32"]
    y = at_least(at_most(x, most), least)
    shifter = format_of(x.dtype).rounder / 16
    shifted = fma(y, LOG2_E, shifter)
    n = shifted - shifter
    r = fma(n, -low, fma(n, -high, y))
    power = entry(SIXTEENTHS, signed_bits(shifted))
    return Call(
        "ldexp", (fma(fma(polynomial(r, EXP_SHORT), r * r, r), power, power), n)
    )


EXP2_LIMITS = {"float32": (-151.0, 129.0), "float64": (-1076.0, 1025.0)}


def exp2(x: Expr) -> Expr:
    """2**x."""
    low, high = EXP2_LIMITS[x.dtype.name]
    y = at_least(at_most(x, high), low)
    h, power = rounded(y, 0.5)
    r = fma(h, -2.0, y)
    return polynomial(r, (1.0, *EXP2[x.dtype.name])) * power * power


def reduced_expm1(x: Expr, offset: int) -> tuple[Expr, Expr]:
    """(q, power) with e**x = (1 + q) * power / 2**offset and |q| < 0.42."""
    high, low = LN2[x.dtype.name]
    n, power = rounded(x, LOG2_E, offset)
    r = fma(n, -low, fma(n, -high, x))
    return fma(polynomial(r, EXPM1[x.dtype.name]), r * r, r), power


EXPM1_LIMITS = {"float32": (-18.0, 89.0), "float64": (-38.0, 710.0)}


def expm1(x: Expr) -> Expr:
    """e**x - 1, computed as twice its half because 2**n may overflow when the result does not."""
    low, high = EXPM1_LIMITS[x.dtype.name]
    q, power = reduced_expm1(at_least(at_most(x, high), low), -1)
    half = fma(q, power, power - 0.5)
    tiny = number(0.25 / 2.0 ** format_of(x.dtype).mantissa, x)
    return Select(magnitude(x) < tiny, x, half + half)


# Below the first the result is 0, above the second 1; the third keeps 1 + exp in range.
SIGMOID_LIMITS = {"float32": (-105.0, 20.0, -32), "float64": (-746.0, 38.0, -64)}


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x), both sides scaled by a power of two so that only the quotient underflows.

    The additional factor 3/2 puts the denominator high in its binade when the quotient is low in
    its own and vice versa, so that its rounding error weighs less.
    """
    low, high, shift = SIGMOID_LIMITS[x.dtype.name]
    q, power = reduced_expm1(-at_least(at_most(x, high), low), shift)
    one = 1.5 * 2.0**shift
    return number(one, x) / fma(q, power * 1.5, fma(power, 1.5, one))
