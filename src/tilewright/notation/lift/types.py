"""The types of Lift: scalars, vectors, tuples, arrays of symbolic length."""

from __future__ import annotations

from typing import Any, TypeAlias

from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.expr.nodes import INDEX, Const, Expr, Var, const
from tilewright.expr.printer import short, show
from tilewright.ir.node import Node
from tilewright.notation.lift.polynomials import normal

# An int64 expression over variables, in normal form; data of a field, not a child of the node.
Length: TypeAlias = Expr


class Type(Node):
    """The type of a value. `t[m, n]` is m arrays of n of these."""

    def __getitem__(self, lengths: Any) -> Type:
        many = lengths if isinstance(lengths, tuple) else (lengths,)
        return array(self, *many)

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
    """`length` items; build it with `array`, which brings the length to normal form."""

    item: Type
    length: Length


_named: dict[str, Var] = {}


def length(value: int | str | Expr) -> Length:
    """A length in normal form: a number, a name (one variable each), or arithmetic on them."""
    if isinstance(value, str):
        return _named.setdefault(value, Var(value, INDEX))
    return normal(value) if isinstance(value, Expr) else const(value)


def lengths(names: str) -> tuple[Length, ...]:
    """The lengths of these names: `m, n = lengths("m n")`."""
    return tuple(map(length, names.replace(",", " ").split()))


def array(item: Type, *lengths: int | str | Expr) -> Type:
    """`array(t, m, n)` is m arrays of n items, `[[t]n]m`. Raises InputError for a negative one."""
    for n in map(length, reversed(lengths)):
        if isinstance(n, Const) and n.value.real < 0:
            raise InputError(f"an array has the length {show(n)}", code="TW-LIFT-LENGTH")
        item = Array(item, n)
    return item


def show_type(t: Type) -> str:
    """`f32`, `Vec(f32, 4)`, `Tup(f32, i64)`, `f32[m, n]` (m arrays of n), `Tup(f32, i64)[n]`."""
    match t:
        case Scalar(dtype):
            return short(dtype)
        case Vector(dtype, width):
            return f"Vec({short(dtype)}, {width})"
        case TupleType(items):
            return f"Tup({', '.join(map(show_type, items))})"
    lengths = []
    while isinstance(t, Array):
        lengths.append(show(t.length))
        t = t.item
    return f"{show_type(t)}[{', '.join(lengths)}]"
