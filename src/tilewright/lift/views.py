"""Delayed values: an array is its length and the value at an index; patterns that only move data
are functions from index maps to index maps (Hagedorn et al., CGO 2018: Lift's views).

    View = Expr                              a scalar
         | tuple of Views
         | Array(length, at)                 at(index) is a View
         | any object with `expr() -> Expr`  a scalar that is not computed yet

Programs are specialized here: every length is a number. A vector is an array of its width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import accumulate
from typing import Any, TypeAlias

from tilewright.base.dataclass import dataclass
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Cast,
    Expr,
    FloorDiv,
    Load,
    Mod,
    Select,
    const,
)
from tilewright.lift import indices
from tilewright.lift import nodes as n
from tilewright.lift.lengths import evaluate
from tilewright.lift.sizes import leaves
from tilewright.lift.types import Array as ArrayType
from tilewright.lift.types import Length, Scalar, TupleType, Type, Vector

View: TypeAlias = Any


class Reads(IntEnum):
    """What reading an element takes: statements before it, an expression, nothing but a load."""

    STATEMENTS = 0
    EXPRESSION = 1
    MEMORY = 2


@dataclass(frozen=True, eq=False, slots=True)
class Array:
    """`length` elements. rows: if this is a Join, the array of arrays; parts: if it is a Concat,
    the arrays.
    """

    length: int
    at: Callable[[Expr], View]
    rows: Array | None = None
    parts: tuple[Array, ...] = ()
    reads: Reads = Reads.EXPRESSION


def number(length: Length) -> int:
    """A length of a specialized program."""
    return evaluate(length, {})


def settled(view: View) -> View:
    """A view that is an expression, a tuple or an Array, where it can be read as one."""
    while hasattr(view, "read"):
        view = view.read()
    return view


def scalar(view: View) -> Expr:
    """The expression of a scalar view."""
    if isinstance(view, Expr):
        return view
    pending: Expr = view.expr()
    return pending


def of_buffers(
    t: Type, buffers: Sequence[Buffer], index: tuple[Expr, ...] = ()
) -> View:
    """The value of type `t` in one buffer per leaf, below `index`."""
    match t:
        case Scalar():
            return Load(buffers[0], index)
        case Vector(_, width):
            return Array(
                width, lambda i: Load(buffers[0], (*index, i)), reads=Reads.MEMORY
            )
        case ArrayType(item, length):
            return Array(
                number(length),
                lambda i: of_buffers(item, buffers, (*index, i)),
                reads=Reads.MEMORY,
            )
        case TupleType(items):
            rest = iter(buffers)
            return tuple(
                of_buffers(i, [next(rest) for _ in leaves(i)], index) for i in items
            )
    raise TypeError(type(t).__name__)


def buffers(view: View) -> set[Buffer]:
    """What the elements of a destination are stored in."""
    if isinstance(view, tuple):
        return set().union(*map(buffers, view))
    if isinstance(view, Array):
        return buffers(view.at(const(0)))
    return {view.buffer}


def plain(e: Expr) -> Expr:
    """An index in linear form."""
    return to_expr(affine(e))


# -- patterns that only move data: (pattern, views) -> view


def mapped(f: Callable[[View], View], x: Array) -> Array:
    """`f` at every element; the known structure of the array is preserved."""
    rows = x.rows
    return Array(
        x.length,
        lambda i: f(x.at(i)),
        None if rows is None else Array(rows.length, lambda i: mapped(f, rows.at(i))),
        tuple(mapped(f, p) for p in x.parts),
    )


def zipped(*xs: Array) -> Array:
    """Tuples of the elements; joined arrays with rows of one length stay joined."""
    rows = tuple(x.rows for x in xs if x.rows is not None)
    all_joined = len(rows) == len(xs)
    joined = None
    if all_joined and len({r.length for r in rows}) == 1:

        def row(i: Expr) -> Array:
            return zipped(*(r.at(i) for r in rows))

        joined = Array(rows[0].length, row)
    return Array(
        xs[0].length,
        lambda i: tuple(x.at(i) for x in xs),
        rows=joined,
        reads=min(x.reads for x in xs),
    )


def component(x: View, position: int) -> View:
    """Component `position` of a tuple, or of every tuple of an array."""
    x = settled(x)
    if not isinstance(x, Array):
        return x[position]
    found = mapped(lambda e: component(e, position), x)
    return replace(found, reads=x.reads)


def split(x: Array, size: int) -> Array:
    """Rows of `size` elements."""

    def row(i: Expr) -> Array:
        return Array(size, lambda j: x.at(plain(i * size + j)), reads=x.reads)

    return Array(x.length // size, row, reads=x.reads)


def join(x: Array) -> Array:
    """The rows one after the other."""
    width = length_of_rows(x)
    at = const(width)
    return Array(
        x.length * width,
        lambda i: x.at(FloorDiv(i, at)).at(Mod(i, at)),
        rows=x,
        reads=x.reads,
    )


def length_of_rows(x: Array) -> int:
    """The length of the elements of an array of arrays."""
    return x.at(const(0)).length  # type: ignore[no-any-return]


def slide(x: Array, size: int, step: int) -> Array:
    """Windows of `size`, each `step` after the one before."""

    def window(i: Expr) -> Array:
        return Array(size, lambda j: x.at(plain(i * step + j)), reads=x.reads)

    return Array((x.length - size + step) // step, window, reads=x.reads)


def transpose(x: Array) -> Array:
    """Columns."""

    def column(i: Expr) -> Array:
        return Array(x.length, lambda j: x.at(j).at(i), reads=x.reads)

    return Array(length_of_rows(x), column, reads=x.reads)


def shifted(x: Array, first: int, length: int) -> Array:
    """`length` elements from `first` on."""
    return Array(length, lambda i: x.at(plain(i + first)), reads=x.reads)


def choose(condition: Expr, then: View, otherwise: View) -> View:
    """`then` where the condition holds, leaf by leaf."""
    then = settled(then)
    otherwise = settled(otherwise)
    if isinstance(then, tuple):
        return tuple(
            choose(condition, a, b) for a, b in zip(then, otherwise, strict=True)
        )
    if isinstance(then, Array):
        reads = min(then.reads, otherwise.reads, Reads.EXPRESSION)
        return Array(
            then.length,
            lambda i: choose(condition, then.at(i), otherwise.at(i)),
            reads=reads,
        )
    return Select(condition, scalar(then), scalar(otherwise))


def concat(*xs: Array) -> Array:
    """One array after the other."""
    *ends, total = accumulate(x.length for x in xs)
    starts = [0, *ends]

    def at(i: Expr) -> View:
        value = xs[-1].at(plain(i - starts[-1]))
        before_last = list(zip(xs, starts, ends, strict=False))
        for x, start, end in reversed(before_last):
            value = choose(i < end, x.at(plain(i - start)), value)
        return value

    return Array(total, at, parts=xs)


def pad_constant(
    x: Array,
    left: int,
    right: int,
    outside: View,
) -> Array:
    """`outside` on both sides."""

    def at(i: Expr) -> View:
        inner = plain(i - left)
        inside = (const(0) <= inner) & (inner < x.length)
        return choose(inside, x.at(inner), outside)

    return Array(left + x.length + right, at)


def _pad(f: n.Pad, x: Array) -> Array:
    left = number(f.left)
    extent = const(x.length)
    source = indices.BOUNDARY[f.boundary]
    return Array(
        left + x.length + number(f.right),
        lambda i: x.at(source(plain(i - left), extent)),
        reads=x.reads,
    )


def permuted(x: Array, index: n.IndexFun, inverse: bool) -> Array:
    """Element `index(i)` at i; with `inverse`, element i at `index(i)`."""
    row = indices.row(index)
    source = row.inverse if inverse else row.at
    extent = const(x.length)
    return Array(
        x.length,
        lambda i: x.at(source(i, extent, *index.args)),
        reads=x.reads,
    )


def filtered(x: Array, ids: Array) -> Array:
    """The elements at `ids`."""

    def at(i: Expr) -> View:
        index = scalar(settled(ids.at(i)))
        return x.at(index if index.dtype is INDEX else Cast(index, INDEX))

    return Array(ids.length, at)


def _unzip(f: n.Unzip, x: Array) -> View:
    count = len(settled(x.at(const(0))))
    return tuple(component(x, k) for k in range(count))


LAYOUT: Mapping[type[n.Fun], Callable[..., View]] = {
    n.Zip: lambda f, *xs: zipped(*xs),
    n.Unzip: _unzip,
    n.Get: lambda f, x: component(x, f.position),
    n.At: lambda f, x: x.at(f.index),
    n.Split: lambda f, x: split(x, number(f.size)),
    n.Join: lambda f, x: join(x),
    n.Slide: lambda f, x: slide(x, number(f.size), number(f.step)),
    n.Transpose: lambda f, x: transpose(x),
    n.Concat: lambda f, *xs: concat(*xs),
    n.Take: lambda f, x: shifted(x, 0, number(f.size)),
    n.Drop: lambda f, x: shifted(x, number(f.size), x.length - number(f.size)),
    n.Pad: _pad,
    n.Gather: lambda f, x: permuted(x, f.index, inverse=False),
    n.Scatter: lambda f, x: permuted(x, f.index, inverse=True),
    n.Filter: lambda f, x, ids: filtered(x, ids),
    n.AsVector: lambda f, x: split(x, f.width),
    n.AsScalar: lambda f, x: join(x),
}
