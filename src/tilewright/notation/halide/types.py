"""Halide's names for dtypes, and the dtype in which two operands of an operator meet."""

from __future__ import annotations

from tilewright.base import dtypes
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError


def _sized(kind: str, bits: int, allowed: tuple[int, ...]) -> DType:
    if bits not in allowed:
        raise InputError(f"{kind} of {bits} bits", hint=f"one of {', '.join(map(str, allowed))}")
    return dtype_of(f"{kind}{bits}")


def UInt(bits: int) -> DType:
    """The unsigned integers of 1 (bool), 8, 16, 32 or 64 bits."""
    return dtypes.bool_ if bits == 1 else _sized("uint", bits, (8, 16, 32, 64))


def Int(bits: int) -> DType:
    """The signed integers of 8, 16, 32 or 64 bits."""
    return _sized("int", bits, (8, 16, 32, 64))


def Float(bits: int) -> DType:
    """The floats of 16, 32 or 64 bits."""
    return _sized("float", bits, (16, 32, 64))


def Bool() -> DType:
    """The truth type."""
    return dtypes.bool_


def meeting_type(a: DType, b: DType) -> DType:
    """Halide's rule: a float beats an integer, the wider wins, signed beats unsigned."""
    if a is b or b.is_bool:
        return a
    if a.is_bool:
        return b
    if a.is_float or b.is_float:
        floats = [t for t in (a, b) if t.is_float]
        return max(floats, key=lambda t: t.bits)
    signed = a.is_signed or b.is_signed
    return _sized("int" if signed else "uint", max(a.bits, b.bits), (8, 16, 32, 64))
