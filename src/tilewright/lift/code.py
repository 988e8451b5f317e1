"""Emitting statements: blocks, loops, stores, and memory for values that are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod

from tilewright.base.errors import InputError
from tilewright.base.names import fresh
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var, const
from tilewright.lift.pending import step_of
from tilewright.lift.producer import BlockFrame, ProducedValue, TypedValue
from tilewright.lift.sizes import leaves
from tilewright.lift.tidy import tidy
from tilewright.lift.types import Array as ArrayType
from tilewright.lift.types import Scalar, TupleType, Type, Vector
from tilewright.lift.views import Array, View, buffers, of_buffers, scalar, shifted
from tilewright.loops.nodes import Stmt, Store, Update, loop

_LETTERS = "ijklmn"
# Values for these spaces are written where they are going, not to their own memory first.
_OUTER = (None, "global", "dram", "output")


class KernelWriter:
    """A kernel that is being written. spaces: the memory scope of each address space."""

    def __init__(self, spaces: Mapping[str, str], taken: set[str]) -> None:
        self.spaces = spaces
        self.frames = [BlockFrame()]
        self.bounds: dict[Var, tuple[int, int]] = {}
        self.names = taken

    # -- statements

    def emit(self, stmt: Stmt) -> None:
        """Append to the innermost block."""
        self.frames[-1].stmts.append(stmt)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the loops around the current place, outermost first."""
        return [f.kind for f in self.frames if f.kind]

    @contextmanager
    def block(self, kind: str = "") -> Iterator[BlockFrame]:
        """A new innermost block, the body of a loop of that kind; closed by the caller."""
        frame = BlockFrame(kind)
        self.frames.append(frame)
        try:
            yield frame
        finally:
            self.frames.pop()

    def loop(
        self,
        length: int,
        kind: str,
        body: Callable[[Expr], None],
    ) -> None:
        """`body` at every index; one iteration makes no loop, but of blocks, and none nothing."""
        if length == 0:
            return
        if length == 1 and not kind.startswith("blockIdx"):
            body(const(0))
            return
        if kind in self.kinds and "." in kind:
            raise InputError(
                f"a loop on {kind} is inside another one",
                code="TW-LIFT-NEST",
                hint="use another dimension, or MapSeq",
                where=f"loop on {kind}",
            )
        v = Var(
            fresh(self.names, _LETTERS[min(len(self.kinds), len(_LETTERS) - 1)]), INDEX
        )
        self.bounds[v] = (0, length - 1)
        with self.block(kind) as frame:
            body(v)
        self.emit(loop(v, length, frame.close(), kind))

    def into(self, value: TypedValue, to: View) -> None:
        """Write a value to its destination, leaf by leaf."""
        view, t = value
        if isinstance(view, ProducedValue):
            if view.made is None and self._takes(to, view.space):
                view.write(to)
                return
            view = view.read()
        match t:
            case ArrayType(item, _):
                self._array(view, item, to)
            case Vector(dtype, width):
                self.loop(width, "vector", self._copy(view, Scalar(dtype), to))
            case TupleType(items):
                for v, item, place in zip(view, items, to, strict=True):
                    self.into(TypedValue(v, item), place)
            case _:
                self.store(to, scalar(view))

    def _takes(self, to: View, space: str | None) -> bool:
        """Whether a value for the space is written there at once."""
        if space in _OUTER:
            return True
        return {b.scope for b in buffers(to)} == {self.spaces[str(space)]}

    def _array(self, view: Array, item: Type, to: Array) -> None:
        if not view.parts:
            self.loop(view.length, "serial", self._copy(view, item, to))
        start = 0
        for part in view.parts:
            t = ArrayType(item, const(part.length))
            self.into(TypedValue(part, t), shifted(to, start, part.length))
            start += part.length

    def _copy(
        self,
        view: Array,
        item: Type,
        to: Array,
    ) -> Callable[[Expr], None]:
        return lambda i: self.into(TypedValue(view.at(i), item), to.at(i))

    def store(self, to: Load, value: Expr) -> None:
        """`to = value`; a step of a declared reduction where it says `to = to + v`."""
        place = self.tidy(to)
        value = self.tidy(value)
        assert isinstance(place, Load)
        if value is place:
            return
        step = step_of(value, place, frozenset({place.buffer}))
        if step is None:
            self.emit(Store(place.buffer, place.index, value))
        else:
            reducer, operand = step
            self.emit(Update((place.buffer,), (place.index,), (operand,), reducer))

    def tidy(self, e: Expr) -> Expr:
        """`e` with simple indices, within the bounds of the loops."""
        return tidy(e, self.bounds)

    # -- memory

    def allocate(self, t: Type, space: str, name: str) -> View:
        """New memory for a value in the innermost block; a scalar is an array of one element."""
        found = leaves(t)
        flat = any(not leaf.lengths for leaf in found)
        scope = self.spaces[space]
        made = []
        for leaf in found:
            shape = (1, *leaf.shape) if flat else leaf.shape
            small = scope == "stack" and shape == (1,)
            taken = fresh(self.names, ".".join((name, *map(str, leaf.path))))
            made.append(
                Buffer(taken, shape, leaf.dtype, "register" if small else scope)
            )
        self.frames[-1].allocs += made
        return of_buffers(t, made, (const(0),) if flat else ())

    def materialize(self, value: ProducedValue) -> View:
        """Memory in the block where the value was made, written before its next statement."""
        inner = self.frames
        self.frames = inner[: inner.index(value.frame) + 1]
        try:
            space = value.space or value.usual or self._default(value.type)
            view = self.allocate(value.type, space, "t")
            value.write(view)
        finally:
            self.frames = inner
        return view

    def _default(self, t: Type) -> str:
        """The default space of a value: arrays outside all loops are global."""
        small = all(prod(leaf.shape) == 1 for leaf in leaves(t))
        return "private" if small or self.kinds else "global"
