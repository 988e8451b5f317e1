"""What gathers the windows of a block of positions side by side, and scatters its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from operator import and_

from tilewright.base.dataclass import dataclass
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    Const,
    Expr,
    Load,
    Select,
    Var,
    as_expr,
    const,
)
from tilewright.ir.node import postorder
from tilewright.loops.nodes import If, Stmt, Store, loop
from tilewright.plan.positions import Positions, PositionWindow
from tilewright.schedule import edit

CHUNK = 64  # contiguous elements, at most, that are copied at a time


@dataclass(frozen=True, eq=False, slots=True)
class WindowCopy:
    """The nest that gathers or scatters the window of some positions.

    tiles: how many rectangles of so many positions cover each open dimension. variable: a new
    one. name: the prefix of its loops. local: where an element of the window is.
    """

    positions: Positions
    tiles: Callable[[int], list[Expr]]
    variable: Callable[[str], Var]
    window: PositionWindow
    name: str
    local: edit.Move
    grid: Sequence[int]
    first: Expr
    scatters: bool

    def nest(
        self,
    ) -> Stmt:
        """Position by position; those within the extents of the window's Computation."""
        if self.positions.boxes:
            return self._scattered() if self.scatters else self._box()
        found = self.positions
        step = found.steps[self.window.of]
        dims = found.dims[self.window.of]
        name = f"{self.name}.at"
        position = self.variable(name)
        points = [self.variable(f"{name}.p") for _ in dims]
        local = places(position, self.grid)
        whole = places(self.first + position, found.counts)
        size = const(step, INDEX)
        inner, outer = local, whole
        if step > 1:
            inner = [u * size + p for u, p in zip(local, points, strict=True)]
            outer = [u * size + p for u, p in zip(whole, points, strict=True)]
        body = self._points(inner, outer)
        within = [d < as_expr(x.size, INDEX) for d, x in zip(outer, dims, strict=True)]
        within += [d >= const(0, INDEX) for d in outer]
        body = If(reduce(and_, within), body, None)
        for p in reversed(points) if step > 1 else ():
            body = loop(p, step, body)
        return loop(position, prod(self.grid), body)

    def _first(self) -> list[Expr]:
        """The first position of the rectangle along each open dimension."""
        tiles = self.tiles(prod(self.grid))
        pairs = zip(places(self.first, tiles), self.grid, strict=True)
        return [t * const(g, INDEX) for t, g in pairs]

    def _outside(self) -> Const | None:
        """What is copied for elements that are not in the tensor; None: those are left out.

        Anything will do where no result that is kept reads it. Rows of a rectangle are copied in
        vectors, whose elements are selected one by one. And a window holds all that its positions
        name: also what a condition that is no guard of this tensor keeps them from reading.
        """
        window, positions = self.window, self.positions
        if window.outside is not None:
            return window.outside
        if window.leaves:
            return const(0, window.tensor.dtype)
        if not positions.boxes:
            return None
        lengths = positions.shape(window, self.grid)
        moved = [a for a, n in zip(window.axes, lengths, strict=True) if n > 1]
        in_rows = moved and moved[-1].dim is not None
        return const(0, window.tensor.dtype) if in_rows else None

    def _scattered(self) -> Stmt:
        """The results of a rectangle, position by position, within their tensor."""
        dims = self.positions.dims[self.window.of]
        local: list[Expr] = [self.variable(f"{self.name}.at") for _ in self.grid]
        outer = [n + v for n, v in zip(self._first(), local, strict=True)]
        body = self._points(local, outer)
        within = [d < as_expr(x.size, INDEX) for d, x in zip(outer, dims, strict=True)]
        within += [d >= const(0, INDEX) for d in outer]
        body = If(reduce(and_, within), body, None)
        for v, n in reversed([*zip(local, self.grid, strict=True)]):
            assert isinstance(v, Var)
            body = loop(v, n, body)
        return body

    def _box(self) -> Stmt:
        """What a rectangle reads, as far as it is in its tensor."""
        tensor, first = self.window.tensor, self._first()
        there: list[Expr] = []
        mine: list[Expr] = []
        inside: list[Expr] = []
        loops: list[tuple[Var, int, str]] = []
        shape = self.positions.shape(self.window, self.grid)
        for a, n, extent in zip(self.window.axes, shape, tensor.extents, strict=True):
            within: Expr = const(0, INDEX)
            if n > 1:
                within = self._along(n, loops)
            at = const(a.least, INDEX) + within
            if a.dim is not None:
                at = at + first[a.dim] * const(a.stride, INDEX)
                if self._outside() is None:
                    (at,) = linear((at,))
                    inside += [at < as_expr(extent, INDEX), at >= const(0, INDEX)]
            there.append(at)
            mine.append(within)
        stmt = self._store(tuple(mine), tuple(there))
        last = len(loops) - 1
        for n, (v, extent, kind) in reversed([*enumerate(loops)]):
            stmt = loop(v, extent, stmt, kind if n == last else "serial")
            if n == last and inside and not any(v in postorder(i) for i in inside):
                stmt = If(reduce(and_, inside), stmt, None)
                inside = []
        return If(reduce(and_, inside), stmt, None) if inside else stmt

    def _points(
        self,
        inner: Sequence[Expr],
        outer: Sequence[Expr],
    ) -> Stmt:
        """The copy of one position, whose places are `inner` in the part and `outer` in all."""
        there: list[Expr] = []
        mine: list[Expr] = [] if self.scatters else list(inner)
        loops: list[tuple[Var, int, str]] = []
        for a in self.window.axes:
            at: Expr = const(a.least, INDEX)
            within: Expr = const(0, INDEX)
            if a.length > 1:
                within = self._along(a.length, loops)
                at = at + within
            if a.dim is not None:
                at = at + outer[a.dim] * const(a.stride, INDEX)
            there.append(at)
            if self.scatters:
                mine.append(inner[a.dim] if a.dim is not None else within)
            elif a.length > 1:
                mine.append(within)
        stmt = self._store(tuple(mine), tuple(there))
        for n, (v, extent, kind) in enumerate(reversed(loops)):
            stmt = loop(v, extent, stmt, kind if n == 0 else "serial")
        return stmt

    def _along(
        self,
        length: int,
        loops: list[tuple[Var, int, str]],
    ) -> Expr:
        chunk = max(n for n in range(1, CHUNK + 1) if length % n == 0)
        inside = self.variable(f"{self.name}.w")
        if chunk == length or chunk == 1:
            loops.append((inside, length, "vector" if chunk > 1 else "serial"))
            return inside
        outside = self.variable(f"{self.name}.w")
        loops += [(outside, length // chunk, "serial"), (inside, chunk, "vector")]
        return outside * const(chunk, INDEX) + inside

    def _store(
        self,
        mine: tuple[Expr, ...],
        there: tuple[Expr, ...],
    ) -> Stmt:
        tensor = self.window.tensor
        local, mine = self.local(mine)
        if self.scatters:
            return Store(tensor, linear(there), Load(local, mine))
        there = linear(there)
        value: Expr = Load(tensor, there)
        outside = self._outside()
        if outside is not None:
            axes = zip(there, tensor.extents, self.window.axes, strict=True)
            conditions = [
                (i >= const(0, INDEX)) & (i < as_expr(e, INDEX))
                for i, e, a in axes
                if not a.is_inside(e)
            ]
            value = Select(reduce(and_, conditions), value, outside)
        return Store(local, mine, value)


def places(
    position: Expr,
    counts: Sequence[Expr | int],
) -> list[Expr]:
    """The place along each dimension of a position in their order."""
    found: list[Expr] = []
    rest = position
    for n, count in reversed(list(enumerate(counts))):
        size = as_expr(count, INDEX)
        found.append(rest % size if n else rest)
        rest = rest // size
    return found[::-1]


def linear(
    index: Sequence[Expr],
) -> tuple[Expr, ...]:
    return tuple(to_expr(affine(i)) for i in index)
