"""log, log1p and log2: exponent and mantissa by integer arithmetic, then log(1 + f).

float32 evaluates a polynomial in f; float64 the odd series in s = f / (2 + f), which needs less
than half the coefficients for one division (the method of fdlibm's `log`).
"""

from __future__ import annotations

from tilewright.base import dtypes
from tilewright.expr.nodes import Bitcast, Cast, Const, Expr, Select, Shl, Shr
from tilewright.targets.llvm.math.coefficients import LOG1P, LOG_RATIO
from tilewright.targets.llvm.math.exponential import LN2
from tilewright.targets.llvm.math.parts import (
    fma,
    format_of,
    number,
    polynomial,
    signed_bits,
    with_sign_of,
)

# The bits of 2/3.
TWO_THIRDS = {"float32": 0x3F2AAAAB, "float64": 0x3FE5555555555555}


def split(x: Expr) -> tuple[Expr, Expr]:
    """(e, m) with x = 2**e * m and 2/3 <= m < 4/3, for positive normal x."""
    f = format_of(x.dtype)
    i = signed_bits(x)
    n = Shr(i - TWO_THIRDS[x.dtype.name], Const(f.mantissa, f.signed))
    m = Bitcast(i - Shl(n, Const(f.mantissa, f.signed)), x.dtype)
    return Cast(n, x.dtype), m


def split_any(x: Expr) -> tuple[Expr, Expr]:
    """`split` for subnormal x too."""
    f = format_of(x.dtype)
    tiny = x < 2.0 ** (1 - f.bias)
    shift = f.mantissa + 1
    e, m = split(Select(tiny, x * 2.0**shift, x))
    return Select(tiny, e - float(shift), e), m


def tail(f: Expr) -> Expr:
    """log(1 + f) - f for 2/3 <= 1 + f < 4/3."""
    z = f * f
    if f.dtype is dtypes.float32:
        return fma(z, -0.5, polynomial(f, LOG1P) * f * z)
    half = z * 0.5
    s = f / (f + 2.0)
    w = s * s
    return fma(s, fma(polynomial(w, LOG_RATIO), w, half), -half)


def with_special(x: Expr, zero: float, result: Expr) -> Expr:
    """The result where x > zero is finite; -infinity at zero, NaN below, x itself above."""
    infinity = number(float("inf"), x)
    pole = Select(x.eq(zero), -infinity, number(float("nan"), x))
    return Select(x < infinity, Select(x > zero, result, pole), x)


def log(x: Expr) -> Expr:
    """The natural logarithm."""
    e, m = split_any(x)
    f = m - 1.0
    high, low = LN2[x.dtype.name]
    return with_special(x, 0.0, fma(e, high, f) + fma(e, low, tail(f)))


def log1p(x: Expr) -> Expr:
    """log(1 + x): the logarithm of u = 1 + x rounded, plus the rounding error over u."""
    one = number(1.0, x)
    u = x + one
    back = u - one
    lost = (one - (u - back)) + (x - back)
    e, m = split(u)
    f = m - one
    high, low = LN2[x.dtype.name]
    value = fma(e, high, f) + (fma(e, low, tail(f)) + lost / u)
    return with_special(x, -1.0, with_sign_of(value, x))


# 1 / ln 2 = high + low
LOG2_E = {
    "float32": (1.4426950216293335, 1.925963033500375e-08),
    "float64": (1.4426950408889634, 2.0355273740931033e-17),
}


def log2(x: Expr) -> Expr:
    """The logarithm to base 2; exact at powers of two."""
    e, m = split_any(x)
    f = m - 1.0
    high, low = LOG2_E[x.dtype.name]
    first = fma(f, high, e)
    lost = fma(f, high, e - first)
    return with_special(x, 0.0, first + fma(tail(f), high, fma(f, low, lost)))
