"""erf: 1 - exp(-g(x)) with a polynomial g, in one piece from 0 to where it is 1."""

from __future__ import annotations

from tilewright.expr.nodes import Expr
from tilewright.targets.cpu.math.exponential import LOG2_E
from tilewright.targets.cpu.math.parts import (
    at_most,
    fma,
    magnitude,
    polynomial,
    rounded,
    with_sign_of,
)

# -log(1 - erf(x)) = x + x * P(x), 0 <= x <= 3.85
NEGATIVE_LOG_ERFC = (
    0.12837916612625122,
    0.6366195678710938,
    0.10277630388736725,
    -0.019147826358675957,
    -0.000169485472724773,
    0.0016756413970142603,
    -0.0006373332580551505,
    0.000118849246064201,
    -9.38615448831115e-06,
)
# exp(-r) - 1 = -r + r**2 * P(r), |r| <= ln 2 / 2
EXPM1_NEGATIVE = (
    0.4999999701976776,
    -0.1666654795408249,
    0.041667331010103226,
    -0.008366101421415806,
    0.0013879502657800913,
)
ERF_ONE = 3.95


def erf(x: Expr) -> Expr:
    """The error function of a float32."""
    y = at_most(magnitude(x), ERF_ONE)
    g = fma(polynomial(y, NEGATIVE_LOG_ERFC), y, y)
    n, power = rounded(g, -LOG2_E)
    r = fma(n, 0.6931471805599453, g)
    q = fma(polynomial(r, EXPM1_NEGATIVE), r * r, -r)
    return with_sign_of(fma(q, power, power - 1.0), x)
