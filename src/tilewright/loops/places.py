"""Every place of a kernel and every access to memory in it, with what is known there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.compute.reducer import Reducer
from tilewright.expr.bounds import Interval, bounds, lasting, refine
from tilewright.expr.nodes import Buffer, Expr, Lt
from tilewright.expr.reads import Guard, reads
from tilewright.loops.nodes import Alloc, Block, For, If, Stmt, Store, Unit, Update, While


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """A statement and its surroundings.

    path: the statements around it, outermost first. guards: conditions that hold (or not) here.
    ranges: the environment for `bounds` that loops and guards give. order: its rank in the text.
    """

    stmt: Stmt
    path: tuple[Stmt, ...]
    guards: tuple[Guard, ...]
    ranges: dict[Any, Interval]
    order: tuple[int, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around the statement, outermost first."""
        return tuple(s for s in self.path if isinstance(s, For))


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """One read, write or update of `buffer[index]`; guards include those of Selects."""

    buffer: Buffer
    index: tuple[Expr, ...]
    reducer: Reducer | None
    writes: bool
    place: Place
    guards: tuple[Guard, ...]
    ranges: dict[Any, Interval]

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around the access, outermost first."""
        return self.place.loops


def places(root: Stmt) -> Iterator[Place]:
    """Every statement below `root` in the order of the text, `root` first."""
    yield from _walk(Place(root, (), (), {}, ()))


def _walk(at: Place) -> Iterator[Place]:
    yield at
    for n, (child, guards, ranges) in enumerate(_inner(at)):
        yield from _walk(Place(child, (*at.path, at.stmt), guards, ranges, (*at.order, n)))


def _inner(at: Place) -> Iterator[tuple[Stmt, tuple[Guard, ...], dict[Any, Interval]]]:
    s = at.stmt
    if isinstance(s, Block):
        for inner in s.stmts:
            yield inner, at.guards, at.ranges
    elif isinstance(s, For):
        yield s.body, at.guards, loop_ranges(s, at.ranges)
    elif isinstance(s, If):
        for arm, holds in ((s.then, True), (s.otherwise, False)):
            if arm is not None:
                guards = (*at.guards, (s.condition, holds))
                yield arm, guards, lasting(refine(at.ranges, s.condition, holds))
    elif isinstance(s, Alloc | While | Unit):
        yield s.body, at.guards, at.ranges


def loop_ranges(s: For, ranges: dict[Any, Interval]) -> dict[Any, Interval]:
    """`ranges` with the loop's variable between 0 and its extent."""
    top = bounds(s.extent, ranges)[1]
    inside = {**ranges, s.var: (0, None if top is None else top - 1)}
    return inside if s.trips is not None else lasting(refine(inside, Lt(s.var, s.extent)))


def expressions(s: Stmt) -> tuple[Expr, ...]:
    """The expressions of the statement itself, without its inner statements."""
    if isinstance(s, For):
        return (s.extent,)
    if isinstance(s, Store):
        return (*s.index, s.value)
    if isinstance(s, Update):
        return (*s.index, *s.values)
    if isinstance(s, If | While):
        return (s.condition,)
    return ()


def accesses(at: Place) -> Iterator[Access]:
    """The accesses of one statement: its loads, then what it writes."""
    for r in reads(expressions(at.stmt), at.ranges, at.guards):
        yield Access(r.load.buffer, r.load.index, None, False, at, r.guards, r.ranges)
    s = at.stmt
    if isinstance(s, Store):
        yield Access(s.buffer, s.index, None, True, at, at.guards, at.ranges)
    elif isinstance(s, Update):
        for b in s.buffers:
            yield Access(b, s.index, s.reducer, True, at, at.guards, at.ranges)
