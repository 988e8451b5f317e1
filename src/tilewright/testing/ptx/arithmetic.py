"""The arithmetic instructions of PTX, on arrays with a value for each thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import inf, isfinite
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
TYPES: Final[Mapping[str, Any]] = {
    "pred": np.bool_,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "s8": np.int8,
    "s16": np.int16,
    "s32": np.int32,
    "s64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "b8": np.uint8,
    "b16": np.uint16,
    "b32": np.uint32,
    "b64": np.uint64,
}


def fma(
    a: Array,
    b: Array,
    c: Array,
) -> Array:
    """a * b + c, rounded once; of float32 and float16 the sum of an exact product, rounded to odd
    before."""
    if a.dtype == np.float64:
        parts = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        return np.array([_fma_exact(*part) for part in parts], np.float64)
    product = a.astype(np.float64) * b.astype(np.float64)
    wide = c.astype(np.float64)
    total = product + wide
    part = total - product
    left = product - (total - part)
    error = left + (wide - part)
    bits = total.view(np.int64)
    is_even = bits & 1 == 0
    inexact = (error != 0) & np.isfinite(total)
    outward = (error > 0) == (total > 0)
    step = np.where(outward, 1, -1)
    odd = np.where(is_even & inexact, bits + step, bits)
    found: Array = odd.view(np.float64).astype(a.dtype)
    return found


def _fma_exact(
    a: float,
    b: float,
    c: float,
) -> float:
    if not all(map(isfinite, (a, b, c))) or a * b == c == 0:
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact)
    except OverflowError:
        return inf if exact > 0 else -inf


def _mul_high_64(a: Array, b: Array) -> Array:
    """The upper half of a product of 64-bit integers."""
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    return np.array([x * y >> 64 for x, y in pairs], a.dtype)


def _mul(
    a: Array,
    b: Array,
    mode: str,
) -> Array:
    if mode == "lo":
        return a * b
    if a.dtype.itemsize > 4:
        return _mul_high_64(a, b)
    wide: type[np.integer[Any]] = np.uint64
    if a.dtype.kind == "i":
        wide = np.int64
    product: Array = a.astype(wide) * b.astype(wide)
    if mode == "wide":
        return product
    bits = 8 * a.dtype.itemsize
    high: Array = (product >> wide(bits)).astype(a.dtype)
    return high


def mul(
    a: Array,
    b: Array,
    c: Array | None = None,
    mode: str = "lo",
) -> Array:
    """a * b, or a * b + c: its low or high half, or all of it."""
    product = _mul(a, b, mode)
    if c is None:
        return product
    total: Array = product + c.astype(product.dtype)
    return total


def shift(kind: str) -> Callable[[Array, Array], Array]:
    """A shift that clamps its count to the width, as PTX does."""

    def run(a: Array, b: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        inside = np.minimum(b, bits - 1).astype(a.dtype)
        moved: Array = a << inside if kind == "shl" else a >> inside
        if kind == "shr" and a.dtype.kind == "i":
            return moved
        return np.where(b < bits, moved, 0).astype(a.dtype)

    return run


def extremum(kind: str, keeps_nan: bool) -> Callable[[Array, Array], Array]:
    """The extremum of two numbers; if one is NaN, the other one, or NaN with `.NaN`; -0 < +0."""
    best = {"min": (np.minimum, np.fmin), "max": (np.maximum, np.fmax)}[kind]

    def run(a: Array, b: Array) -> Array:
        if a.dtype.kind != "f":
            return best[0](a, b)
        if keeps_nan:
            order = best[0]
        else:
            order = best[1]
        found = order(a, b)
        one = np.signbit(a)
        other = np.signbit(b)
        if kind == "min":
            sign = one | other
        else:
            sign = one & other
        zero = np.where(sign, -0.0, 0.0)
        zeros = (a == 0) & (b == 0)
        return np.where(zeros, zero, found).astype(a.dtype)

    return run


def _quotient(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b)
    quotient = a // safe
    is_below = (quotient * safe != a) & ((a < 0) != (b < 0))
    found: Array = (quotient + is_below).astype(a.dtype)
    return found


def _bits(
    a: Array,
    at: Array,
    count: Array,
) -> Array:
    """A bit field; the highest bit is the sign of a signed number."""
    one = np.uint64(1)
    width = count.astype(np.uint64)
    mask = (one << width) - one
    moved = a.astype(np.uint64) >> at.astype(np.uint64)
    found = moved & mask
    if a.dtype.kind == "i":
        sign = one << (width - one)
        found = (found ^ sign) - sign
    return found.astype(a.dtype)


_SELECTORS: Final = np.arange(0, 16, 4, dtype=np.uint32)  # where each is in a word
_BYTE: Final = np.uint64(255)


def _permuted(
    a: Array,
    b: Array,
    chosen: Array,
) -> Array:
    """Four bytes of eight, each by its number; with 8 added its sign, eight times."""
    numbers = chosen[:, None] >> _SELECTORS
    high = b.astype(np.uint64) << np.uint64(32)
    whole = high | a
    shifts = 8 * (numbers & 7)
    bytes_ = whole[:, None] >> shifts.astype(np.uint64)
    bytes_ &= _BYTE
    is_negative = bytes_ > 127
    signs = np.where(is_negative, _BYTE, 0)
    is_sign = numbers & 8 != 0
    found = np.where(is_sign, signs, bytes_)
    packed = np.ascontiguousarray(found.astype(np.uint8))
    return packed.view(np.uint32)[:, 0]


SIMPLE: Final[Mapping[str, Callable[..., Array]]] = {
    "prmt": _permuted,
    "mov": lambda a: a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "div": _quotient,
    "rem": lambda a, b: a - _quotient(a, b) * b,
    "rcp": lambda a: a.dtype.type(1) / a,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "neg": lambda a: -a,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "shl": shift("shl"),
    "shr": shift("shr"),
    "copysign": lambda a, b: np.copysign(b, a),
    "fma": fma,
    "bfe": _bits,
    "popc": lambda a: np.bitwise_count(a),
}

_ORDERS: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def compare(
    how: str,
    a: Array,
    b: Array,
) -> Array:
    """A comparison; for floats, one with `u` also holds if an operand is NaN."""
    nan = np.zeros(a.shape, bool)
    if a.dtype.kind == "f":
        nan = np.isnan(a) | np.isnan(b)
    if how == "nan":
        return nan
    if how == "num":
        return ~nan
    if how not in _ORDERS:
        return _ORDERS[how[:2]](a, b) | nan
    return _ORDERS[how](a, b) & ~nan


_ROUND: Final[Mapping[str, Any]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def convert(
    a: Array,
    to: Any,
    modes: tuple[str, ...],
) -> Array:
    """`cvt`: floats to integers by saturation, NaN as 0; integers by their low bits."""
    for mode in modes:
        if mode in _ROUND and a.dtype.kind == "f":
            a = _ROUND[mode](a)
    if a.dtype.kind != "f":
        return a.astype(to)
    if np.dtype(to).kind == "f":
        return a.astype(to)
    info = np.iinfo(to)
    low = float(info.min)
    high = float(info.max)
    inside = np.clip(np.nan_to_num(a.astype(np.float64)), low, high)
    over = inside >= high
    whole = np.where(over, 0, inside).astype(to)
    return np.where(over, info.max, whole).astype(to)


def widened(value: Array) -> Array:
    """Integers extended to 64 bits, the widest register."""
    if value.dtype.kind not in "iu":
        return value
    wide: type[np.integer[Any]] = np.uint64
    if value.dtype.kind == "i":
        wide = np.int64
    return value.astype(wide)
