"""erf as 1 - exp(-g(x)) with a polynomial g, in one piece from 0 to where it is 1."""

from __future__ import annotations

from tilewright.expr.nodes import Expr
from tilewright.targets.cpu.math.coefficients import NEGATIVE_LOG_ERFC
from tilewright.targets.cpu.math.exponential import reduced_expm1
from tilewright.targets.cpu.math.parts import (
    at_most,
    fma,
    magnitude,
    polynomial,
    with_sign_of,
)

# From here on erf is 1.
ERF_LIMIT = {"float32": 3.95, "float64": 5.93}


def erf(x: Expr) -> Expr:
    """The error function."""
    y = at_most(magnitude(x), ERF_LIMIT[x.dtype.name])
    g = fma(polynomial(y, NEGATIVE_LOG_ERFC[x.dtype.name]), y, y)
    q, power = reduced_expm1(-g, 0)
    return with_sign_of(fma(q, power, power - 1.0), x)
