"""Every place of a kernel and every access to memory in it, with what is known there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tilewright.compute.reducer import Reducer
from tilewright.expr.bounds import Interval, bounds, lasting, refine
from tilewright.expr.nodes import Buffer, Expr, Lt
from tilewright.expr.reads import Guard, reads
from tilewright.loops import walk
from tilewright.loops.access import together
from tilewright.loops.nodes import For, If, Stmt, Store, Update, While


@dataclass(frozen=True, eq=False, slots=True)
class Place(walk.Place):
    """A statement, those around it, and what holds there.

    guards: conditions that hold (or not). ranges: the environment for `bounds` that loops and
    guards give.
    """

    guards: tuple[Guard, ...]
    ranges: dict[Any, Interval]


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
    def together(self) -> tuple[Buffer, ...]:
        """Of an update, all the buffers of its values, if these are one value (else empty)."""
        s, above = self.place.stmt, self.place.above
        if not isinstance(s, Update) or not self.writes:
            return ()
        # What is allocated outside of all loops is made once, as parameters are.
        once = next((n for n, x in enumerate(above) if isinstance(x, For | While)), len(above))
        return together(s, above[once:])

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around the access, outermost first."""
        return self.place.loops


def places(root: Stmt) -> Iterator[Place]:
    """Every statement below `root` in the order of the text, `root` first."""
    yield from _walk(Place(root, (), (), {}))


def _walk(at: Place) -> Iterator[Place]:
    yield at
    for child, guards, ranges in _inner(at):
        yield from _walk(Place(child, (*at.above, at.stmt), guards, ranges))


def _inner(at: Place) -> Iterator[tuple[Stmt, tuple[Guard, ...], dict[Any, Interval]]]:
    s = at.stmt
    if isinstance(s, For):
        yield s.body, at.guards, loop_ranges(s, at.ranges)
    elif isinstance(s, If):
        for arm, holds in ((s.then, True), (s.otherwise, False)):
            if arm is not None:
                guards = (*at.guards, (s.condition, holds))
                yield arm, guards, lasting(refine(at.ranges, s.condition, holds))
    else:
        for inner in walk.below(s):
            yield inner, at.guards, at.ranges


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
        return (*chain(*s.indices), *s.values)
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
        for b, index in s.targets:
            yield Access(b, index, s.reducer, True, at, at.guards, at.ranges)
