"""log: exponent and mantissa by integer arithmetic, a polynomial on [2/3, 4/3)."""

from __future__ import annotations

from tilewright.expr.nodes import Bitcast, Cast, Const, Expr, Select, Shl, Shr
from tilewright.targets.cpu.math.parts import (
    Format,
    fma,
    format_of,
    number,
    polynomial,
    signed_bits,
)

LN2 = {"float32": (0.693145751953125, 1.428606765330187e-06)}
# log(1 + f) = f - f**2 / 2 + f**3 * P(f)
LOG1P = {
    "float32": (
        0.3333326578140259,
        -0.2500424087047577,
        0.20007935166358948,
        -0.16472230851650238,
        0.14042028784751892,
        -0.15122844278812408,
        0.1382177174091339,
    )
}


def split(x: Expr) -> tuple[Expr, Expr]:
    """(e, m) with x = 2**e * m and 2/3 <= m < 4/3, for positive finite x."""
    f = format_of(x.dtype)
    smallest = number(2.0 ** (1 - f.bias), x)
    tiny = x < smallest
    scaled = Select(tiny, x * 2.0 ** (f.mantissa + 1), x)
    i = signed_bits(scaled)
    two_thirds = {23: 0x3F2AAAAB, 52: 0x3FE5555555555555}[f.mantissa]
    n = Shr(i - two_thirds, Const(f.mantissa, f.signed))
    m = Bitcast(i - Shl(n, Const(f.mantissa, f.signed)), x.dtype)
    e = Cast(n, x.dtype)
    return Select(tiny, e - float(f.mantissa + 1), e), m


def log(x: Expr) -> Expr:
    name = x.dtype.name
    e, m = split(x)
    f = m - 1.0
    z = f * f
    ln2, rest = LN2[name]
    p = fma(polynomial(f, LOG1P[name]) * f, z, e * rest)
    r = fma(e, ln2, f) + fma(z, -0.5, p)
    inf = number(float("inf"), x)
    bad = Select(x.eq(0.0), -inf, number(float("nan"), x))
    return Select(x < inf, Select(x > 0.0, r, bad), x)
