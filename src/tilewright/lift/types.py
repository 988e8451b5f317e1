"""The types of Lift: scalars, vectors, tuples, arrays of symbolic length."""

from __future__ import annotations

from keyword import iskeyword
from typing import Any, TypeAlias

from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.expr.nodes import INDEX, Const, Expr, Var, const
from tilewright.expr.printer import short, show
from tilewright.ir.node import Node
from tilewright.lift.polynomials import normal

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


def length(value: Any) -> Length:
    """A length in normal form: a number, a name (one variable each), or arithmetic on them.

    Raises InputError for a name that is not a word of Python, and for anything else.
    """
    if isinstance(value, str):
        if not value.isidentifier() or iskeyword(value):
            raise _no_length(
                f"{value!r} names no length", "a name is a word, as in lengths('m n')"
            )
        return _named.setdefault(value, Var(value, INDEX))
    if isinstance(value, Expr) and value.dtype is INDEX:
        return normal(value)
    number = whole(value)
    if number is None:
        hint = "give a number, a name, or arithmetic on lengths"
        raise _no_length(f"{value!r} is not a length", hint)
    return const(number)


def lengths(names: str) -> tuple[Length, ...]:
    """The lengths of these names: `m, n = lengths("m n")`.

    Raises InputError unless it is a list of distinct names.
    """
    if not isinstance(names, str):
        raise _no_length(
            f"{names!r} is not text", "name them in one text, as in lengths('m n')"
        )
    words = names.replace(",", " ").split()
    for n, word in enumerate(words):
        if word in words[:n]:
            raise _no_length(
                f"{word!r} is named twice", "each name is one length; name it once"
            )
    return tuple(map(length, words))


def _no_length(message: str, hint: str) -> InputError:
    return InputError(message, code="TW-LIFT-LENGTH", where="length", hint=hint)


def array(item: Type, *lengths: int | str | Expr) -> Type:
    """`array(t, m, n)` is m arrays of n items, `[[t]n]m`. InputError for a negative length."""
    for n in map(length, reversed(lengths)):
        if isinstance(n, Const) and n.value.real < 0:
            raise InputError(
                f"an array has the length {show(n)}",
                code="TW-LIFT-LENGTH",
                where=f"array of {show_type(item)}",
                hint="a length is 0 or more",
            )
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
    if not isinstance(t, Array):
        return repr(t)  # of a kind that says itself how it is shown
    lengths = []
    while isinstance(t, Array):
        lengths.append(show(t.length))
        t = t.item
    return f"{show_type(t)}[{', '.join(lengths)}]"
