"""Values produced by statements, whose destination depends on what follows.

A `ProducedValue` is a computation with its type. Written straight to its destination it costs
nothing more; read, it gets its own memory in the block where it was made. A pattern that only moves
data and can be turned around moves the destination instead of the value (`INVERSE`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NamedTuple, Protocol

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer, Expr
from tilewright.lift import nodes as n
from tilewright.lift import views
from tilewright.lift.types import Array as ArrayType
from tilewright.lift.types import Type
from tilewright.lift.views import Array, Reads, View, number, scalar
from tilewright.loops.nodes import Alloc, Stmt, block


@dataclass(eq=False, slots=True)
class BlockFrame:
    """A block that is being written: the kind of its loop, its statements, the buffers in it."""

    kind: str = ""
    stmts: list[Stmt] = field(default_factory=list)
    allocs: list[Buffer] = field(default_factory=list)

    def close(self) -> Stmt:
        """The block, inside its allocations."""
        body = block(*self.stmts)
        for b in reversed(self.allocs):
            body = Alloc(b, body)
        return body


class TypedValue(NamedTuple):
    """A value with its type."""

    view: View
    type: Type


class ValueInMemory(Protocol):
    """Materializes a value: runs `write` on new memory in `frame`, and reads it."""

    def materialize(self, value: ProducedValue) -> View: ...


@dataclass(eq=False, slots=True)
class ProducedValue:
    """A value of type `type` that `write(destination)` computes; made in `frame`.

    space: the requested address space, None for whatever its reader needs. usual: the one that its
    elements are written in, which it gets when it is read. lazy: its elements, computed where they
    are read, if it need not be in memory. As a view, it is read like any other.
    """

    type: Type
    write: Callable[[View], None]
    frame: BlockFrame
    memory: ValueInMemory
    space: str | None = None
    lazy: Array | None = None
    made: View = None
    usual: str | None = None

    def read(self) -> View:
        """The elements: where they are needed, or in memory."""
        if self.lazy is None:
            return self.place()
        return self.lazy

    def place(self) -> View:
        """The value in memory."""
        if self.made is None:
            self.made = self.memory.materialize(self)
        return self.made

    def expr(self) -> Expr:
        """A scalar, read."""
        return scalar(self.read())

    def at(self, i: Expr) -> View:
        """An element, read."""
        return self.read().at(i)

    def __getitem__(self, position: int) -> View:
        return self.read()[position]

    @property
    def length(self) -> int:
        """Of an array."""
        assert isinstance(self.type, ArrayType)
        return number(self.type.length)

    @property
    def rows(self) -> None:
        """As `Array.rows`: unknown."""
        return None

    @property
    def reads(self) -> Reads:
        """As `Array.reads`; its own memory is written in its own block."""
        if self.lazy is None:
            return Reads.EXPRESSION
        return self.lazy.reads

    @property
    def parts(self) -> tuple[Array, ...]:
        """As `Array.parts`: none."""
        return ()


def inverse(f: n.Fun, t: Type, destination: View) -> View | None:
    """Where the argument (of type `t`) of `f` is written, for `f` of it to be in `destination`.

    None if `f` cannot be turned around.
    """
    found = INVERSE.get(type(f))
    if found is None:
        return None
    return found(f, t, destination)


def _rows_of(f: n.Fun, t: Any, d: Array) -> View:
    return views.split(d, number(t.item.length))


def _lanes_of(f: n.Fun, t: Any, d: Array) -> View:
    return views.split(d, t.item.width)


INVERSE: Mapping[type[n.Fun], Callable[[Any, Any, View], View]] = {
    n.Join: _rows_of,
    n.Split: lambda f, t, d: views.join(d),
    n.Transpose: lambda f, t, d: views.transpose(d),
    n.AsScalar: _lanes_of,
    n.AsVector: lambda f, t, d: views.join(d),
    n.Unzip: lambda f, t, d: views.zipped(*d),
    n.Gather: lambda f, t, d: views.permuted(d, f.index, inverse=True),
    n.Scatter: lambda f, t, d: views.permuted(d, f.index, inverse=False),
}


def inverse_of_all(
    f: n.Fun, types: Callable[[n.Fun, Type], Type], t: Type, d: View
) -> View | None:
    """`inverse` for compositions and maps of such patterns; `types` gives a function's result."""
    if isinstance(f, n.Map):
        assert isinstance(t, ArrayType)
        item = t.item
        if not invertible(f.f):
            return None
        return views.mapped(lambda e: inverse_of_all(f.f, types, item, e), d)
    if isinstance(f, n.Compose):
        if not invertible(f):
            return None
        before = [t]
        for g in f.funs[:-1]:
            before.append(types(g, before[-1]))
        for g, a in reversed([*zip(f.funs, before, strict=True)]):
            d = inverse_of_all(g, types, a, d)
        return d
    return inverse(f, t, d)


def invertible(f: n.Fun) -> bool:
    """Whether `inverse_of_all` can turn it around."""
    match f:
        case n.Map(g):
            return invertible(g)
        case n.Compose(funs):
            return all(map(invertible, funs))
    return type(f) in INVERSE
