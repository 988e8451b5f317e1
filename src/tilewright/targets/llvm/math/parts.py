"""The building blocks of expansions: fused multiply-adds, Horner's rule, clamps, exponent bits.

Nothing here branches. A clamp is written as `Select(limit < x, limit, x)`, which is one machine
instruction (`vminps`, `fcmgt` + `bsl`) and lets a NaN through. Powers of two are built by shifting
an integer into the exponent field; the integer itself comes from adding 1.5 * 2**p to a float
(p = mantissa bits), which rounds to nearest even and leaves the integer in the low bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.expr.nodes import And, Bitcast, Call, Const, Expr, Select, Shl, const

Number = Expr | float | int


@dataclass(frozen=True)
class BinaryFormat:
    """A binary floating-point format: mantissa bits, exponent bias and its integer dtypes."""

    mantissa: int
    bias: int
    signed: DType
    unsigned: DType

    @property
    def rounder(self) -> float:
        """1.5 * 2**mantissa: adding it rounds a smaller number to an integer."""
        return 1.5 * 2.0**self.mantissa

    @property
    def sign_bit(self) -> int:
        """The integer that has only the sign bit."""
        return 1 << (self.signed.bits - 1)


@cache
def format_of(dtype: DType) -> BinaryFormat:
    """The format of float32 or float64."""
    if dtype is dtypes.float32:
        return BinaryFormat(23, 127, dtypes.int32, dtypes.uint32)
    return BinaryFormat(52, 1023, dtypes.int64, dtypes.uint64)


def number(value: Number, like: Expr) -> Expr:
    """`value` as an expression of the dtype of `like`."""
    if isinstance(value, Expr):
        return value
    return const(value, like.dtype)


def fma(a: Expr, b: Number, c: Number) -> Expr:
    """a * b + c, rounded once."""
    return Call("fma", (a, number(b, a), number(c, a)))


def polynomial(
    x: Expr, coefficients: Sequence[float], last: Number | None = None
) -> Expr:
    """Horner's rule; coefficients from the constant term upwards, after `last` if it is given."""
    terms: list[Number] = list(coefficients) if last is None else [last, *coefficients]
    total = number(terms[-1], x)
    for c in reversed(terms[:-1]):
        total = fma(total, x, c)
    return total


def entry(table: Sequence[float], n: Expr) -> Expr:
    """The one of 16 float32 entries that the low bits of `n` select."""
    return Call("entry", (*(const(c, dtypes.float32) for c in table), n))


def magnitude(x: Expr) -> Expr:
    """|x|."""
    return Call("abs", (x,))


def sqrt(x: Expr) -> Expr:
    """The square root."""
    return Call("sqrt", (x,))


def with_sign_of(x: Expr, sign: Expr) -> Expr:
    """|x| with the sign bit of `sign`."""
    return Call("copysign", (x, sign))


def at_most(x: Expr, limit: float) -> Expr:
    """min(x, limit); NaN stays NaN."""
    bound = number(limit, x)
    return Select(bound < x, bound, x)


def at_least(x: Expr, limit: float) -> Expr:
    """max(x, limit); NaN stays NaN."""
    bound = number(limit, x)
    return Select(x < bound, bound, x)


def bits(x: Expr) -> Expr:
    """The bits of a float as an unsigned integer."""
    return Bitcast(x, format_of(x.dtype).unsigned)


def signed_bits(x: Expr) -> Expr:
    """The bits of a float as a signed integer."""
    return Bitcast(x, format_of(x.dtype).signed)


def rounded(x: Expr, factor: float, offset: int = 0) -> tuple[Expr, Expr]:
    """(n, 2**(n + offset)) for n = x * factor rounded to an integer, |n| < 2**(mantissa - 2).

    The power is right where n + offset is the exponent of a normal number.
    """
    f = format_of(x.dtype)
    shifter = f.rounder + f.bias + offset
    t = fma(x, factor, shifter)
    power = Bitcast(Shl(bits(t), Const(f.mantissa, f.unsigned)), x.dtype)
    return t - shifter, power


def sign_mask(x: Expr) -> Expr:
    """The sign bit of `x` alone, as an unsigned integer."""
    f = format_of(x.dtype)
    return And(bits(x), Const(f.sign_bit, f.unsigned))


def xor_sign(x: Expr, mask: Expr) -> Expr:
    """`x` with its sign flipped if the integer `mask` has the sign bit."""
    return Bitcast(bits(x) ^ mask, x.dtype)
