"""Halide's names for dtypes, and the common dtype of two operands."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError, UnsupportedError


class TypeCode(Enum):
    """The kinds of types."""

    Int = 0
    UInt = 1
    Float = 2
    Handle = 3
    BFloat = 4


@dataclass(frozen=True, slots=True)
class Type:
    """A type of scalar values, with Halide's questions about it."""

    dtype: DType

    def bits(self) -> int:
        """The width of a value; 1 of a Bool."""
        if self.dtype.is_bool:
            return 1
        return self.dtype.bits

    def bytes(self) -> int:
        """The bytes that a value takes in a Buffer."""
        return self.dtype.itemsize

    def lanes(self) -> int:
        """1: vectors are made by schedules."""
        return 1

    def with_lanes(self, lanes: int) -> Type:
        """This type, of one lane. Raises UnsupportedError for more: a value is a scalar."""
        if lanes != 1:
            raise UnsupportedError(
                f"a type of {lanes} lanes",
                where="with_lanes",
                hint="vectorize(x) makes vectors",
            )
        return self

    def element_of(self) -> Type:
        """The type of one lane: this one."""
        return self

    def is_scalar(self) -> bool:
        """Whether it has one lane: yes."""
        return True

    def is_vector(self) -> bool:
        """Whether it has several lanes: no."""
        return False

    def is_handle(self) -> bool:
        """Whether it is a pointer: no."""
        return False

    def same_handle_type(self, other: Type) -> bool:
        """Whether both are the same type, neither being a pointer."""
        return self == other

    def code(self) -> TypeCode:
        """The kind of type."""
        if self.is_bfloat():
            return TypeCode.BFloat
        if self.is_float():
            return TypeCode.Float
        return TypeCode.Int if self.is_int() else TypeCode.UInt

    def with_code(self, code: TypeCode) -> Type:
        """The type of another kind and this width. Raises InputError where there is none."""
        if code is TypeCode.Handle:
            raise UnsupportedError(
                "a type of pointers",
                where="with_code",
                hint="pass arrays as ImageParams",
            )
        return _MAKERS[code](self.bits())

    def is_int(self) -> bool:
        """Whether it is a signed integer."""
        return self.dtype.is_int and self.dtype.is_signed

    def is_uint(self) -> bool:
        """Whether it is an unsigned integer; Bool is one of a bit."""
        return self.dtype.is_bool or (self.dtype.is_int and not self.dtype.is_signed)

    def is_float(self) -> bool:
        """Whether it is a float."""
        return self.dtype.is_float

    def is_bfloat(self) -> bool:
        """Whether it is bfloat16; `is_float` holds of it too."""
        return self.dtype is dtypes.bfloat16

    def is_bool(self) -> bool:
        """Whether it is the truth type."""
        return self.dtype.is_bool

    def min(self) -> int | float:
        """The least finite value."""
        if self.dtype.is_bool:
            return 0
        return self.dtype.min

    def max(self) -> int | float:
        """The greatest finite value."""
        if self.dtype.is_bool:
            return 1
        return self.dtype.max

    def is_min(self, value: Any) -> bool:
        """Whether a number is the least finite value."""
        return bool(value == self.min())

    def is_max(self, value: Any) -> bool:
        """Whether a number is the greatest finite value."""
        return bool(value == self.max())

    def can_represent(self, value: Any) -> bool:
        """Whether a number, or all values of another type, are values of this one, exactly.

        Float(16) represents the integers of 8 bits (Halide says that it does not).
        """
        if isinstance(value, Type):
            return self._holds(value)
        if not self.is_float():
            return bool(self.min() <= value <= self.max()) and value == int(value)
        try:
            with np.errstate(over="ignore"):
                nearest = float(self.dtype.numpy.type(value))
        except OverflowError:  # an int beyond all floats
            return False
        return bool(nearest == value or value != value)

    def _holds(self, other: Type) -> bool:
        if other.is_float():
            return self.is_float() and other.bits() <= self.bits()
        if self.is_float():
            digits = np.finfo(self.dtype.numpy).nmant + 1
            return other.bits() - other.is_int() <= digits
        return self.min() <= other.min() and other.max() <= self.max()

    def with_bits(self, bits: int) -> Type:
        """The type of this kind of another width. Raises InputError where there is none."""
        make = Float if self.is_float() else Int if self.is_int() else UInt
        return make(bits)

    def __str__(self) -> str:
        return self.dtype.name


def plain(type: Type | DType) -> DType:
    """The dtype of a type. Raises InputError for anything that is not a type."""
    found = type.dtype if isinstance(type, Type) else type
    if not isinstance(found, DType):
        raise InputError(
            f"{type!r} is not a type", hint="such as hl.UInt(8) or hl.Float(32)"
        )
    return found


def _sized(kind: str, bits: int, allowed: tuple[int, ...]) -> DType:
    if bits not in allowed:
        raise InputError(
            f"{kind} of {bits} bits", hint=f"one of {', '.join(map(str, allowed))}"
        )
    return dtype_of(f"{kind}{bits}")


def UInt(bits: int) -> Type:
    """The unsigned integers of 1 (bool), 8, 16, 32 or 64 bits."""
    return Type(dtypes.bool_ if bits == 1 else _sized("uint", bits, (8, 16, 32, 64)))


def Int(bits: int) -> Type:
    """The signed integers of 8, 16, 32 or 64 bits."""
    return Type(_sized("int", bits, (8, 16, 32, 64)))


def Float(bits: int) -> Type:
    """The floats of 16, 32 or 64 bits."""
    return Type(_sized("float", bits, (16, 32, 64)))


def BFloat(bits: int) -> Type:
    """The floats of 16 bits with the range of 32."""
    return Type(_sized("bfloat", bits, (16,)))


def Bool() -> Type:
    """The truth type."""
    return Type(dtypes.bool_)


_MAKERS = {
    TypeCode.Int: Int,
    TypeCode.UInt: UInt,
    TypeCode.Float: Float,
    TypeCode.BFloat: BFloat,
}


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
