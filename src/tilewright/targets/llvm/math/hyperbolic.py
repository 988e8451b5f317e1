"""tanh, sinh, cosh and their inverses."""

from __future__ import annotations

from tilewright.expr.nodes import Expr, Select
from tilewright.targets.llvm.math.coefficients import SCALED_EXPM1, SINH
from tilewright.targets.llvm.math.exponential import LOG2_E, scaled_exp
from tilewright.targets.llvm.math.logarithm import log1p
from tilewright.targets.llvm.math.parts import (
    at_most,
    fma,
    magnitude,
    number,
    polynomial,
    rounded,
    sqrt,
    with_sign_of,
)

LN2 = 0.6931471805599453

# From here on tanh is 1.
TANH_LIMIT = {"float32": 9.02, "float64": 19.1}


def tanh(x: Expr) -> Expr:
    """e / (e + 3/2) for e = 3/4 * (exp(2|x|) - 1), with the sign of x.

    The factor 3/4 puts the denominator high in its binade when the quotient is high in its own, so
    that its rounding error weighs less. One part of ln 2 is enough: the more is subtracted, the
    less the quotient depends on e.
    """
    y = at_most(magnitude(x), TANH_LIMIT[x.dtype.name])
    n, power = rounded(y, 2 * LOG2_E)
    r = fma(n, -LN2 / 2, y)
    q = fma(r, 1.5, polynomial(r, SCALED_EXPM1[x.dtype.name]) * (r * r))
    e = fma(q, power, fma(power, 0.75, -0.75))
    return with_sign_of(e / (e + 1.5), x)


# From here on sinh and cosh are infinite.
COSH_LIMIT = {"float32": 90.0, "float64": 711.0}


def sinh(x: Expr) -> Expr:
    """A polynomial up to 1, from there on e - 1 / (4e) with e = exp(|x|) / 2."""
    y = magnitude(x)
    e = scaled_exp(at_most(y, COSH_LIMIT[x.dtype.name]), 0.5)
    z = x * x
    small = fma(polynomial(z, SINH[x.dtype.name]) * z, x, x)
    large = with_sign_of(e - number(0.25, x) / e, x)
    return Select(y < 1.0, small, large)


def cosh(x: Expr) -> Expr:
    """e + 1 / (4e) with e = exp(|x|) / 2."""
    e = scaled_exp(at_most(magnitude(x), COSH_LIMIT[x.dtype.name]), 0.5)
    return e + number(0.25, x) / e


HUGE = 2.0**60


def arcsinh(x: Expr) -> Expr:
    """log1p(|x| + x**2 / (1 + sqrt(1 + x**2))), or log(2|x|) where x**2 absorbs the 1 (float64)."""
    y = magnitude(x)
    z = y * y
    huge = y > HUGE
    u = Select(huge, y, y + z / (sqrt(z + 1.0) + 1.0))
    return with_sign_of(log1p(u) + Select(huge, number(LN2, x), number(0.0, x)), x)


def arccosh(x: Expr) -> Expr:
    """log1p(t + sqrt(t * (t + 2))) for t = x - 1, or log(2x) for huge x (float64)."""
    t = x - 1.0
    huge = x > HUGE
    u = Select(huge, x, t + sqrt(fma(t, t, t + t)))
    value = log1p(u) + Select(huge, number(LN2, x), number(0.0, x))
    return Select(t < 0.0, number(float("nan"), x), value)


def arctanh(x: Expr) -> Expr:
    """log1p(2|x| / (1 - |x|)) / 2 with the sign of x (float64)."""
    y = magnitude(x)
    return with_sign_of(log1p((y + y) / (number(1.0, x) - y)) * 0.5, x)
