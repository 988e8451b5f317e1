"""exp, exp2, sigmoid and tanh: one reduction by powers of two, one polynomial each.

exp(x) = exp(r) * 2**h * 2**h with h = round(x / (2 ln 2)) and |r| <= ln 2. Twice the usual interval
costs one more coefficient, and saves the split of the exponent that subnormal results and
results near overflow need: both factors are always normal numbers. ln 2 is subtracted in two parts.

The polynomials are minimax in relative error (Remez' exchange in 200 bits, coefficients rounded one
after the other from the lowest, the rest fitted again).
"""

from __future__ import annotations

from tilewright.expr.nodes import Expr
from tilewright.targets.cpu.math.parts import (
    at_least,
    at_most,
    fma,
    magnitude,
    number,
    polynomial,
    rounded,
    with_sign_of,
)

LOG2_E = 1.4426950408889634

# ln 2 = high + low: the high part has enough trailing zero bits for its product with n to be exact.
LN2 = {"float32": (0.693145751953125, 1.428606765330187e-06)}

# exp(r) = 1 + r + r**2 * P(r), |r| <= ln 2
EXP = {
    "float32": (
        0.5000003576278687,
        0.1666661947965622,
        0.04166117310523987,
        0.008335723541676998,
        0.0014106199378147721,
        0.0001967177086044103,
    )
}
EXP_RANGE = {"float32": (-104.0, 89.0)}


def exp(x: Expr) -> Expr:
    """e**x; 0 below and infinity above the range, subnormal results rounded once."""
    name = x.dtype.name
    low, high = EXP_RANGE[name]
    y = at_least(at_most(x, high), low)
    h, power = rounded(y, LOG2_E / 2)
    ln2, rest = LN2[name]
    r = fma(h, -2 * rest, fma(h, -2 * ln2, y))
    return polynomial(r, (1.0, 1.0, *EXP[name])) * power * power


# exp(r) - 1 = r + r**2 * P(r), |r| <= ln 2 / 2
EXPM1 = {
    "float32": (
        0.4999999701976776,
        0.1666654795408249,
        0.041667331010103226,
        0.008366101421415806,
        0.0013879502657800913,
    )
}
SIGMOID_RANGE = {"float32": (-105.0, 20.0, 32)}


def sigmoid(x: Expr) -> Expr:
    """e / (e + c) for e = c * e**x, c = 3/2 * 2**shift.

    The power of two lets only the quotient underflow. The factor 3/2 puts the denominator high in
    its binade where the quotient is high in its own, so that its rounding weighs little.
    """
    name = x.dtype.name
    low, high, shift = SIGMOID_RANGE[name]
    y = at_least(at_most(x, high), low)
    n, power = rounded(y, LOG2_E, shift)
    ln2, rest = LN2[name]
    r = fma(n, -rest, fma(n, -ln2, y))
    q = fma(polynomial(r, EXPM1[name]), r * r, r)
    scale = power * 1.5
    e = fma(q, scale, scale)
    return e / (e + 1.5 * 2.0**shift)


# 3/4 * (exp(2r) - 1) = 3/2 * r + r**2 * P(r), |r| <= ln 2 / 4
SCALED_EXPM1 = {
    "float32": (
        1.5,
        0.9999929070472717,
        0.5000022649765015,
        0.2007855474948883,
        0.0667111724615097,
    )
}
TANH_ONE = {"float32": 9.02}


def tanh(x: Expr) -> Expr:
    """e / (e + 3/2) for e = 3/4 * (exp(2|x|) - 1), with the sign of x.

    The factor 3/2 serves the same end as in `sigmoid`. One part of ln 2 is enough: the more of it is subtracted, the less the
    quotient depends on e.
    """
    name = x.dtype.name
    y = at_most(magnitude(x), TANH_ONE[name])
    n, power = rounded(y, 2 * LOG2_E)
    r = fma(n, -0.34657359027997264, y)
    q = fma(r, 1.5, polynomial(r, SCALED_EXPM1[name]) * (r * r))
    e = fma(q, power, fma(power, 0.75, -0.75))
    return with_sign_of(e / (e + 1.5), x)
