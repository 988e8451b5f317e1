"""The types of Lift: scalars, vectors, tuples, arrays of symbolic length."""

from __future__ import annotations

from typing import TypeAlias

from tilewright.base.dtypes import DType
from tilewright.expr.nodes import Expr
from tilewright.expr.printer import short, show
from tilewright.ir.node import Node

# An int64 expression over variables, in normal form; data of a field, not a child of the node.
Length: TypeAlias = Expr


class Type(Node):
    """The type of a value."""

    def __repr__(self) -> str:
        return show_type(self)


class Scalar(Type):
    dtype: DType


class Vector(Type):
    """`width` scalars that are worked on together."""

    dtype: DType
    width: int


class TupleType(Type):
    items: tuple[Type, ...]


class Array(Type):
    """`length` items; build it with `lengths.array`, which brings the length to normal form."""

    item: Type
    length: Length


def show_type(t: Type) -> str:
    """`f32`, `f32x4` (a vector), `(f32, i64)`, `f32[m, n]` (m arrays of n), `(f32, i64)[n]`."""
    match t:
        case Scalar(dtype):
            return short(dtype)
        case Vector(dtype, width):
            return f"{short(dtype)}x{width}"
        case TupleType(items):
            return f"({', '.join(map(show_type, items))}{',' * (len(items) == 1)})"
    lengths = []
    while isinstance(t, Array):
        lengths.append(show(t.length))
        t = t.item
    return f"{show_type(t)}[{', '.join(lengths)}]"
