"""erf as 1 - exp(-g(x)) with a polynomial g, in one piece from 0 to where it is 1; or in pieces."""

from __future__ import annotations

from tilewright.expr.nodes import Expr
from tilewright.targets.llvm.math.coefficients import ERF_PIECES, NEGATIVE_LOG_ERFC
from tilewright.targets.llvm.math.exponential import reduced_expm1
from tilewright.targets.llvm.math.parts import (
    at_most,
    entry,
    fma,
    format_of,
    magnitude,
    polynomial,
    signed_bits,
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


# Pieces of a quarter each; after the last erf is within an ulp of 1.
PIECE, PIECES_LIMIT = 0.25, 3.8749


def erf_by_pieces(x: Expr) -> Expr:
    """The error function of float32, where `entry` is one instruction.

    A polynomial around each multiple of a quarter. A slope of 9/8, which is exact, comes last:
    the rounding errors of the others then weigh little for small results.
    """
    y = at_most(magnitude(x), PIECES_LIMIT)
    shifter = format_of(x.dtype).rounder * PIECE
    n = y + shifter
    t = y - (n - shifter)
    terms = [entry(column, signed_bits(n)) for column in zip(*ERF_PIECES, strict=True)]
    total = terms[-1]
    for c in reversed(terms[:-1]):
        total = fma(total, t, c)
    return with_sign_of(fma(t, 1.125, total), x)
