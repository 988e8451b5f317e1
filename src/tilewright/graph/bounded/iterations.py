"""A closed body that runs repeatedly on bounded tensors: its states and its stacked items.

A state keeps the same memory through all iterations. If its extents change, the memory has their
maximal size and the counts are carried along: an extent that grows by a constant per iteration is
bounded by that constant times the number of iterations. Each iteration stores its items in one row
of a buffer with a row for every possible iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int64
from tilewright.graph.bounded.bodies import Body
from tilewright.graph.bounded.branches import grown
from tilewright.graph.bounded.builder import BoundedBuilder
from tilewright.graph.bounded.context import Results
from tilewright.graph.bounded.extents import (
    BoundedExtent,
    Dim,
    Dims,
    is_open,
    least,
    most,
)
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.open_extents import DOMAIN

if TYPE_CHECKING:
    from tilewright.graph.bounded.bound import Env, OperatorWalk

# The condition to continue, the states and the items.
Iteration = tuple[Value, list[Value], list[Value]]
ATTEMPTS = 6  # attempts until the bounds of states hold


@dataclass(frozen=True)
class LoopSource:
    """What a Loop is built from: its body, trip count, states and the way its results are stacked.

    step: adds one iteration to a body, given its number and the states. bound: of the trip count;
    None if unknown.
    """

    op: Operation
    trips: Value
    bound: int | None
    going: Value
    states: tuple[Value, ...]
    step: Callable[[Body, Value, list[Value]], Iteration]


@dataclass(frozen=True, slots=True)
class GrowingExtent:
    """The upper bound of a state's changing extent. growth: by how much it grows per iteration.

    kind: extents of one kind are equal in every iteration and share one count.
    """

    most: int
    growth: int = 0
    kind: int = 0


Spec = tuple[int | GrowingExtent, ...]


def looped(walk: OperatorWalk, source: LoopSource, env: Env) -> Results | None:
    """The Loop, with states as large as their extents can become."""
    dims = [walk.builder.dims(v) for v in source.states]
    specs = _kinds([_spec(d) for d in dims], dims)
    for _ in range(ATTEMPTS):
        attempt = _Attempt(walk, source, dict(env), specs)
        wider = attempt.wider()
        if wider is None:
            return None
        if wider == specs:
            return attempt.results()
        specs = wider
    return None


def _spec(dims: Dims) -> Spec:
    return tuple(
        d if isinstance(d, int) else GrowingExtent(max(d.most, 0)) for d in dims
    )


def _kinds(specs: Sequence[Spec], said: Sequence[Sequence[object]]) -> list[Spec]:
    """The extents by kind; kinds are split by what is known about each extent."""
    known: dict[object, int] = {}
    found = []
    for spec, what in zip(specs, said, strict=True):
        made = [
            replace(d, kind=known.setdefault((d, w), len(known)))
            if isinstance(d, GrowingExtent)
            else d
            for d, w in zip(spec, what, strict=True)
        ]
        found.append(tuple(made))
    return found


class _Attempt:
    """One iteration of a body on states with given bounds."""

    def __init__(
        self, walk: OperatorWalk, source: LoopSource, env: Env, specs: Sequence[Spec]
    ) -> None:
        self.walk, self.source, self.specs = walk, source, specs
        self.label = source.op.label
        inner = walk.inner(self.label)
        b = inner.builder
        b.guard = None
        self.body = body = Body(inner, [], env)
        number = body.input(f"{self.label}/number", Value("", int64, ()))
        if source.bound is not None:
            last = BoundedExtent(
                number,
                0,
                max(source.bound - 1, 0),
            )
            inner.context.contents.put(number, [last], ())
        self.states: list[Value] = []
        self.counts: dict[int, Dim] = {}  # by kind
        for n, (v, spec) in enumerate(zip(source.states, specs, strict=True)):
            memory = tuple(d if isinstance(d, int) else d.most for d in spec)
            like = Value("", v.dtype, memory)
            self.states.append(body.input(f"{self.label}/state{n}", like))
        for d in (d for spec in specs for d in spec if isinstance(d, GrowingExtent)):
            if d.kind not in self.counts:
                count = body.input(f"{self.label}/count{d.kind}", Value("", int64, ()))
                self.counts[d.kind] = BoundedExtent(count, 0, d.most)
        for v, spec in zip(self.states, specs, strict=True):
            b.sized(v, _dims(spec, self.counts))
        again, self.after, self.items = source.step(body, number, list(self.states))
        self.again = scalar(b, again) if again.static else again

    @property
    def b(self) -> BoundedBuilder:
        """The body's builder."""
        return self.body.walk.builder

    def wider(self) -> list[Spec] | None:
        """The bounds that the states need; None if there are none."""
        if not all(v.static for v in (self.again, *self.after, *self.items)):
            return None
        found = []
        for spec, given, v in zip(
            self.specs, self.source.states, self.after, strict=True
        ):
            dims = self.b.dims(v)
            if len(dims) != len(spec) or given.dtype is not v.dtype:
                return None
            pairs = [self._wider(s, d) for s, d in zip(spec, dims, strict=True)]
            if None in pairs:
                return None
            found.append(tuple(p for p in pairs if p is not None))
        after = [self.b.dims(v) for v in self.after]
        before = [self.walk.builder.dims(v) for v in self.source.states]
        said = [
            [
                (first, d if isinstance(s, GrowingExtent) else None)
                for s, d, first in zip(*parts, strict=True)
            ]
            for parts in zip(self.specs, after, before, strict=True)
        ]
        return _kinds(found, said)

    def _wider(self, now: int | GrowingExtent, d: Dim) -> int | GrowingExtent | None:
        """The bound of an extent that is `now` before an iteration and `d` after it."""
        if isinstance(now, int):
            return now if d == now else GrowingExtent(max(now, most(d)))
        growth = most(d) - now.most
        if growth <= now.growth:
            return now
        if now.growth or self.source.bound is None:
            return None
        # A body that never runs is still checked for one iteration, so leave room for it.
        most_ever = now.most + growth * max(self.source.bound, 1)
        return GrowingExtent(most_ever, growth, now.kind)

    def results(self) -> Results | None:
        """The operator around the body and its results."""
        b, source, outer = self.b, self.source, self.walk.builder
        trips, bound = source.trips, source.bound
        if any(is_open(b.dims(v)) for v in self.items):
            return None
        if self.items and bound is None:
            return None
        ends: list[Value] = []
        extents: list[Dims] = []
        for v, spec in zip(self.after, self.specs, strict=True):
            v, dims = _within(b, v, spec)
            ends.append(v)
            extents.append(dims)
        counts = self._each([tuple(d) for d in extents])
        outputs = [self.again, *ends, *map(b.scalar, counts), *self.items]
        taken = self.body.taken(outputs)
        body = self.body.closed(f"{self.label} body", outputs, taken)
        if body is None:
            return None
        if outer.guard is not None:
            going = outer.op("And", source.going, outer.guard)
        else:
            going = source.going
        first = [
            grown(
                outer,
                v,
                [d if isinstance(d, int) else d.most for d in spec],
            )
            for v, spec in zip(source.states, self.specs, strict=True)
        ]
        begin = self._each([outer.dims(v) for v in source.states])
        first += [outer.scalar(d) for d in begin]
        made = outer.ops(
            "Loop",
            trips,
            going,
            *first,
            *taken,
            count=len(outputs),
            domain=DOMAIN,
            label=self.label,
            body=body,
            states=len(first),
            bound=bound if self.items and bound is not None else 0,
        )
        return self._named(made)

    def _each(self, dims: Sequence[Dims]) -> list[Dim]:
        """For each kind of extents, in order, its value in tensors of these."""
        found: dict[int, Dim] = {}
        for spec, known in zip(self.specs, dims, strict=True):
            for s, d in zip(spec, known, strict=True):
                if isinstance(s, GrowingExtent):
                    found.setdefault(s.kind, d)
        return [found[kind] for kind in self.counts]

    def _named(self, made: Sequence[Value]) -> Results:
        """States with their counts, and stacked items with the number of iterations."""
        outer = self.walk.builder
        states = len(self.states)
        found = list(made[1 : 1 + states])
        counts = made[1 + states : 1 + states + len(self.counts)]
        pairs = zip(self.counts.items(), counts, strict=True)
        after = {kind: outer.extent(count, most(d)) for (kind, d), count in pairs}
        for v, spec in zip(found, self.specs, strict=True):
            outer.sized(v, _dims(spec, after))
        stacked = made[1 + states + len(self.counts) :]
        trips = self._trips(made[0])
        for v in stacked:
            found.append(outer.sized(v, (trips, *v.extents[1:])))
        return list(found)

    def _trips(self, count: Value) -> Dim:
        """The number of iterations."""
        outer, bound = self.walk.builder, self.source.bound
        always = _is_true(self.again, self.b) and _is_true(self.source.going, outer)
        held = self.walk.context.contents.ints(self.source.trips)
        if always and held is not None and least(held[0]) >= 0 and outer.guard is None:
            return held[0]
        return outer.extent(count, bound or 0)


def _dims(spec: Spec, counts: Mapping[int, Dim]) -> Dims:
    """The extents of a state, by the counts of each kind."""
    return tuple(d if isinstance(d, int) else counts[d.kind] for d in spec)


def _is_true(v: Value, b: BoundedBuilder) -> bool:
    found = b.typer.known.get(v)
    return found is not None and bool(found.all())


def _within(b: BoundedBuilder, v: Value, spec: Spec) -> tuple[Value, Dims]:
    """A state after an iteration, in memory of the bounds; exceeding them is a run-time error."""
    wanted = [d if isinstance(d, int) else d.most for d in spec]
    dims = list(b.dims(v))
    for axis, (d, end) in enumerate(zip(dims, wanted, strict=True)):
        if isinstance(spec[axis], int):
            continue
        dims[axis] = b.require(d, 0, end)
        if v.extents[axis] > end:
            starts = b.constant([0])
            ends = b.constant([end])
            v = b.op("Slice", v, starts, ends, b.constant([axis]))
    return grown(b, v, wanted), tuple(dims)


def scalar(b: BoundedBuilder, v: Value) -> Value:
    """A tensor's only element as a scalar."""
    return v if v.shape == () else b.op("Reshape", v, b.constant(np.empty(0)))
