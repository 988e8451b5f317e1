"""pow: exp(y * log|x|) with more than the result's precision in between, and C's special cases.

float32 works in float64: the logarithm to 36 bits, the power to 29. float64 carries the logarithm
and the product as sums of two numbers, good to about 66 bits.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base import dtypes
from tilewright.expr.nodes import And, Call, Cast, Const, Expr, Select
from tilewright.targets.llvm.math.coefficients import (
    EXP2_FOR_FLOAT32,
    LOG2_FOR_FLOAT32,
    LOG_RATIO_TAIL,
)
from tilewright.targets.llvm.math.exponential import EXP_LIMITS, LN2, scaled_exp
from tilewright.targets.llvm.math.logarithm import split, split_any
from tilewright.targets.llvm.math.parts import (
    at_least,
    at_most,
    fma,
    format_of,
    magnitude,
    number,
    polynomial,
    rounded,
    sign_mask,
    xor_sign,
)

INFINITY = float("inf")
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)


def _sqrt(x: Expr) -> Expr:
    """x**0.5: unlike a square root, it is +0 at -0 and infinite at -infinity."""
    root = Call("sqrt", (x + 0.0,))
    return Select(x.eq(-INFINITY), number(INFINITY, x), root)


# Exponents that models write as constants, each within 2 ulp.
BY_CONSTANT: dict[float, Callable[[Expr], Expr]] = {
    -1.0: lambda x: number(1.0, x) / x,
    -0.5: lambda x: number(1.0, x) / _sqrt(x),
    0.5: _sqrt,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}


def _known(y: Expr) -> Callable[[Expr], Expr] | None:
    if isinstance(y, Const):
        return BY_CONSTANT.get(float(y.value.real))
    return None


def pow32(x: Expr, y: Expr) -> Expr:
    """x**y of float32; a constant exponent may need much less."""
    known = _known(y)
    if known is not None:
        return known(x)
    wide = _with_special(Cast(x, dtypes.float64), Cast(y, dtypes.float64), _power32)
    return Cast(wide, dtypes.float32)


def pow64(x: Expr, y: Expr) -> Expr:
    """x**y of float64; a constant exponent may need much less."""
    known = _known(y)
    if known is not None:
        return known(x)
    return _with_special(x, y, _power64)


def _with_special(x: Expr, y: Expr, power: Callable[[Expr, Expr], Expr]) -> Expr:
    """`power(|x|, y)` with the signs and exceptions of C's Annex F.

    Where log|x| is 0, infinite or NaN, its product with y does most of the work; y is kept finite
    so that (-1)**inf is 1.
    """
    one, zero, nan = (number(v, x) for v in (1.0, 0.0, float("nan")))
    finite = at_least(at_most(y, 2.0**900), -(2.0**900))
    size = power(magnitude(x), finite)
    whole = _floor(finite).eq(finite)
    half = finite * 0.5
    odd = whole & _floor(half).ne(half)
    signed = xor_sign(
        size, Select(odd, sign_mask(x), Const(0, format_of(x.dtype).unsigned))
    )
    imaginary = And(And(x < zero, -number(INFINITY, x) < x), ~whole)
    value = Select(imaginary, nan, signed)
    return Select(x.eq(1.0) | y.eq(0.0), one, value)


def _floor(x: Expr) -> Expr:
    return Call("floor", (x,))


def _with_limits(x: Expr, exponent: Expr) -> Expr:
    """The exponent of x >= 0, infinite where log(x) is, NaN where x is."""
    finite = Select(x < INFINITY, exponent, x)
    return Select(x.eq(0.0), number(-INFINITY, x), finite)


def _power32(x: Expr, y: Expr) -> Expr:
    """x**y for x >= 0 of float64 that came from float32, with 27 right bits."""
    e, m = split(x)
    f = m - 1.0
    product = y * fma(polynomial(f, LOG2_FOR_FLOAT32), f, _with_limits(x, e))
    t = at_least(at_most(product, 200.0), -200.0)
    n, power = rounded(t, 1.0)
    return polynomial(t - n, EXP2_FOR_FLOAT32) * power


def _power64(x: Expr, y: Expr) -> Expr:
    """x**y for x >= 0 of float64."""
    high, low = _log(x)
    product = y * high
    rest = fma(y, high, -product) + y * low
    smallest, largest = EXP_LIMITS["float64"]
    t = at_least(at_most(product, largest), smallest)
    # Beyond the limits the rest is meaningless, and for an infinite logarithm it is NaN.
    return scaled_exp(t, rest=Select(t.eq(product), rest, number(0.0, x)))


def _log(x: Expr) -> tuple[Expr, Expr]:
    """log(x) as a sum of two float64, x >= 0.

    2 arctanh(q) for q = (m - 1) / (m + 1), all leading terms with their rounding errors.
    """
    e, m = split_any(x)
    f = m - 1.0
    d = m + 1.0
    d_low = (number(1.0, x) - d) + m
    inverse = number(1.0, x) / d
    q = f * inverse
    q_low = (fma(-q, d, f) - q * d_low) * inverse

    z = q * q
    z_low = fma(q, q, -z) + (q + q) * q_low
    s = polynomial(z, LOG_RATIO_TAIL) * z
    c = s + TWO_THIRDS[0]
    c_low = ((number(TWO_THIRDS[0], x) - c) + s) + TWO_THIRDS[1]
    u = z * c
    u_low = fma(z, c, -u) + fma(z, c_low, z_low * c)
    v = q * u
    v_low = fma(q, u, -v) + fma(q, u_low, q_low * u)

    q2 = q + q
    t = q2 + v
    t_low = ((q2 - t) + v) + (v_low + (q_low + q_low))
    ln2, ln2_low = LN2["float64"]
    exponent = _with_limits(x, e)
    high = fma(exponent, ln2, t)
    return high, (fma(exponent, ln2, -high) + t) + fma(e, ln2_low, t_low)
