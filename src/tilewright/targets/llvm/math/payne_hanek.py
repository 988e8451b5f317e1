"""A huge float64 modulo pi/2: its integer mantissa times the relevant bits of 2/pi.

This is the method of Payne and Hanek: x = m * 2**k with a 53-bit integer m. Bits of 2/pi whose
product with x is a multiple of 4 do not matter, and neither do those far below; a window of 192
bits remains, whose place depends on the exponent only. A barrel shifter of `Select`s cuts it from
the constant.
"""

from __future__ import annotations

from itertools import pairwise

from tilewright.base import dtypes
from tilewright.expr.nodes import And, Bitcast, Cast, Expr, Or, Select, Shl, Shr, const
from tilewright.targets.llvm.math.parts import bits

# 64 zero bits, then the first bits of 2/pi after the binary point.
WORDS = (
    0x0,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
)
LOW = 0xFFFFFFFF


def _word(value: int) -> Expr:
    return const(value, dtypes.uint64)


def _shl(a: Expr, by: int) -> Expr:
    return Shl(a, _word(by))


def _shr(a: Expr, by: int) -> Expr:
    return Shr(a, _word(by))


def _window(position: Expr) -> list[Expr]:
    """Three 64-bit words of 2/pi from bit `position` (0 to 1087) of WORDS on."""
    words = [_word(w) for w in WORDS]
    zero = _word(0)
    index = _shr(position, 6)
    for step in (16, 8, 4, 2, 1):
        chosen = And(index, _word(step)).ne(0)
        padded = words + [zero] * step
        words = [
            Select(chosen, padded[i + step], padded[i])
            for i in range(min(len(words), step + 3))
        ]
    shift = And(position, _word(63))
    back = shift ^ 63
    return [Or(Shl(a, shift), Shr(_shr(b, 1), back)) for a, b in pairwise(words)]


def _product(m: Expr, w: Expr) -> tuple[Expr, Expr]:
    """The upper and the lower 64 bits of a product of 64-bit integers."""
    m0 = And(m, _word(LOW))
    m1 = _shr(m, 32)
    w0 = And(w, _word(LOW))
    w1 = _shr(w, 32)
    lowest, cross = m0 * w0, m1 * w0
    middle = m0 * w1 + _shr(lowest, 32) + And(cross, _word(LOW))
    high = m1 * w1 + _shr(cross, 32) + _shr(middle, 32)
    return high, Or(_shl(middle, 32), And(lowest, _word(LOW)))


def quarter_turns_of_large(y: Expr) -> tuple[Expr, Expr, Expr]:
    """(n, f, g) with y = (n + f + g) * pi/2 modulo 2 pi for a finite float64 y >= 2**20.

    n is an integer in 0..4 (uint64), |f| <= 1/2, and g is the rounding error of f. For any other y
    the results are meaningless.
    """
    raw = bits(y)
    m = Or(And(raw, _word((1 << 52) - 1)), _word(1 << 52))
    first, second, third = _window(_shr(raw, 52) - 1013)
    high, low = _product(m, second)
    below, _ = _product(m, third)
    low_sum = low + below
    carry = Cast(low_sum < below, dtypes.uint64)
    turns = m * first + high + carry
    n = _shr(turns + (1 << 61), 62)
    rest = Bitcast(turns - _shl(n, 62), dtypes.int64)
    upper = Cast(Shr(rest, const(32)), dtypes.float64) * 2.0**-30
    lower = Cast(And(rest, const(LOW)), dtypes.float64) * 2.0**-62
    lowest = Cast(low_sum, dtypes.float64) * 2.0**-126
    f = upper + lower
    g = ((upper - f) + lower) + lowest
    total = f + g
    return n, total, (f - total) + g
