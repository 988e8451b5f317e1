"""Arrays of a size's extent whose numbers depend on another size: each call computes them.

Shape arithmetic gives them when the model is compiled for one size: the positions past + 0, past +
1, ... of a sequence behind a cache, or where each sentence of a batch begins in a flat mask. For a
range of sizes no constant has all of them. What they are computed from may be one: 0, 1, ... up to
the largest size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.base.errors import TilewrightError
from tilewright.driver.deciding_inputs import decides
from tilewright.driver.ranges.generalize import is_corner
from tilewright.driver.ranges.sample_points import pattern
from tilewright.driver.ranges.size_forms import is_whole, same_array
from tilewright.driver.ranges.size_terms import Extents
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.at_run_time import AT_RUN_TIME, DOMAIN
from tilewright.graph.specialize import InferredTypes
from tilewright.runtime.dispatch import Allowed

Arrays = Sequence[Any]
NEAR: Final = 1.0  # how far a whole number may be from one that changes as a size does
BY_TYPE: Final = (
    "Shape",
    "Size",
)  # their results are known although their operands are not


def with_computed_arrays(
    graph: Graph,
    allowed: Allowed,
    typing_at: Callable[[Extents], InferredTypes],
) -> Graph:
    """The graph in which such arrays are not constants; typing_at: as of `RangedBuilder`.

    An operator is computed in each call if, of its results, one has extents that change with sizes
    and is not the leading part of itself at larger ones, while every operand is a leading part, or
    has the same extents at all sizes. So is one whose results change, are numbers that are no sum
    of sizes, and decide no shape.
    """
    if all(len(e) == 1 for e in allowed.values()):
        return graph
    points = _points(allowed)
    try:
        typings = [typing_at(point) for point in points]
    except TilewrightError:  # a model that needs a step: the error is told later
        return graph
    known = {v: a for op in graph.operations for v, a in _known(op, typings)}
    made = _Computed(graph, known, points, [*_ends(allowed, points[0], typing_at)])
    operations = [new for op in graph.operations for new in made.operations(op)]
    if not made.hidden:
        return graph
    return graph.with_operations(operations)


def _points(allowed: Allowed) -> list[Extents]:
    """The pattern, and those where one size is another one, two of each size."""
    start = pattern(allowed)
    points: list[Extents] = [start]
    for name, extents in allowed.items():
        others = sorted(extents, key=lambda n: (abs(n - start[name]), -n))
        points += [{**start, name: n} for n in others[1:3]]
    return points


def _ends(
    allowed: Allowed, start: Extents, typing_at: Callable[[Extents], InferredTypes]
) -> Iterator[tuple[Extents, InferredTypes]]:
    """Where one size is at an end of its range, if that is valid, with the types there."""
    for name, extents in allowed.items():
        for n in sorted({min(extents), max(extents)} - {start[name]}):
            end = {**start, name: n}
            try:
                yield end, typing_at(end)
            except TilewrightError:
                continue


def _known(
    op: Operation, typings: Sequence[InferredTypes]
) -> Iterator[tuple[Value, Arrays]]:
    """The values that an operator touches whose numbers are known, with these."""
    for v in (*op.reads, *op.writes):
        arrays = [t.known.get(t.env.get(v, v)) for t in typings]
        if not any(a is None for a in arrays):
            yield v, arrays


def _shaping(graph: Graph, known: Collection[Value]) -> set[Value]:
    """The known values from which shapes, or what else the compiler must know, are computed."""
    found: set[Value] = set()
    for op in reversed(graph.operations):
        if op.qualified in BY_TYPE:
            continue
        whole = bool(op.subgraphs) or not found.isdisjoint(op.writes)
        for n, v in enumerate(op.inputs):
            if v is not None and v in known and (whole or decides(op, n)):
                found.add(v)
    return found


def _changes(arrays: Arrays) -> bool:
    """Whether numbers are known and change, and no extent does."""
    if not arrays:
        return False
    first, *others = arrays
    if any(a.shape != first.shape for a in others):
        return False
    return not all(same_array(a, first) for a in others)


def _is_number(arrays: Arrays) -> bool:
    """Whether each has one element, a whole number: code adds such a number up from sizes."""
    return all(a.size == 1 and a.dtype.kind in "iuf" and is_whole(a) for a in arrays)


def _is_sum(arrays: Arrays, points: Sequence[Extents]) -> bool:
    """Whether they change as each size does; whole numbers, as of shape arithmetic, nearly so: a
    size divided and rounded down is less than 1 away from that.

    points: where the arrays are; others than the first one differ from it in one size.
    """
    if any(a.dtype.kind not in "iuf" for a in arrays):
        return False
    away = NEAR if all(map(is_whole, arrays)) else 0.0
    start, first = points[0], arrays[0].astype(np.float64)
    for name, n in start.items():
        changes = {
            point[name] - n: a.astype(np.float64) - first
            for point, a in zip(points, arrays, strict=True)
            if point[name] != n
        }
        far = max(changes, key=abs, default=0)
        for step, change in changes.items():
            slope, known = change / step, changes[far] / far
            if not away and not np.array_equal(slope, known, equal_nan=True):
                return False
            if away and np.abs(change - known * step).max(initial=0) > away:
                return False
    return True


def _is_one(arrays: Arrays) -> bool:
    """Whether one constant has the arrays: of equal extents, or each a leading part."""
    first, *others = arrays
    if all(a.shape == first.shape for a in others):
        return True
    for a in others:
        if a.ndim != first.ndim or not (is_corner(a, first) or is_corner(first, a)):
            return False
    return True


class _Computed:
    """Rewrites operators. hidden: the stand-in of each constant. late: what calls compute."""

    def __init__(
        self,
        graph: Graph,
        known: Mapping[Value, Arrays],
        points: Sequence[Extents],
        ends: Sequence[tuple[Extents, InferredTypes]],
    ) -> None:
        self._known = known
        self._points = points
        self._ends = ends
        self._names = {v.name for op in graph.operations for v in op.writes}
        self._makers = {v: op for op in graph.operations for v in op.writes}
        self._shaping = _shaping(graph, known)
        self._again: dict[Value, Value] = {}
        self.hidden: dict[Value, Value] = {}
        self.late: set[Value] = set()

    def operations(self, op: Operation) -> list[Operation]:
        """The operator itself, or behind what it needs to be computed in each call."""
        if op.qualified in BY_TYPE:
            return [op]
        if not self.late.isdisjoint(op.reads):
            self.late.update(v for v in op.writes if v in self._known)
            return [op]
        results = [self._known[v] for v in op.writes if v in self._known]
        if op.subgraphs:
            return [op]
        if all(map(_is_one, results)):
            untold = (self._is_untold(v) for v in op.writes if v in self._known)
            return self._repeated(op) if any(untold) else [op]
        operands = [self._known.get(v) for v in op.reads]
        if any(a is None or not _is_one(a) for a in operands):
            return [op]
        arrays = [v for v in op.reads if self._grows(v)]
        if op.qualified != "Range" and not arrays:
            return self._repeated(op)
        self.late.update(op.writes)
        if op.qualified == "Range":
            return self._counted(op)
        before = [new for v in dict.fromkeys(arrays) for new in self._hide(v)]
        inputs = tuple(self.hidden.get(v, v) if v in arrays else v for v in op.inputs)
        return [*before, replace(op, inputs=inputs)]

    def _is_untold(self, v: Value) -> bool:
        """Whether its numbers change, and are no sum of sizes."""
        arrays, points = [*self._known[v]], [*self._points]
        for point, typing in self._ends:
            array = typing.known.get(typing.env.get(v, v))
            if array is not None and array.shape == arrays[0].shape:
                arrays.append(array)
                points.append(point)
        return _changes(arrays) and not _is_sum(arrays, points)

    def _grows(self, v: Value) -> bool:
        """Whether its extents depend on sizes; others may be the shape of a result."""
        return len({a.shape for a in self._known[v]}) > 1

    def _repeated(self, op: Operation) -> list[Operation]:
        """The operator, on operands that calls compute if no shape comes from its results."""
        if not self._shaping.isdisjoint(op.writes):
            return [op]
        before: list[Operation] = []
        inputs = self._in_calls(op, before)
        if inputs is None:
            return [*before, op]
        self.late.update(op.writes)
        return [*before, replace(op, inputs=inputs)]

    def _in_calls(
        self, op: Operation, before: list[Operation]
    ) -> tuple[Value | None, ...] | None:
        """The operands, as calls compute those that change; None if one is not computed so.

        before: gets what computes them.
        """
        if op.subgraphs or op.qualified in BY_TYPE:
            return None
        found: list[Value | None] = []
        for n, v in enumerate(op.inputs):
            known = () if v is None or decides(op, n) else self._known.get(v, ())
            if v is not None and _changes(known):
                v = self._in_call(v, before)
                if v is None:
                    return None
            found.append(v)
        return None if tuple(found) == op.inputs else tuple(found)

    def _in_call(self, v: Value, before: list[Operation]) -> Value | None:
        """What has the numbers of a value that changes, computed from whole numbers."""
        if v not in self._again:
            if _is_number(self._known[v]):
                zero = self._value(v, "zero")
                before.append(Operation("Sub", (v, v), (zero,), version=14))
                before += self._hide(zero)
                op = Operation("Add", (self.hidden[zero], v), (v,), version=14)
                inputs: tuple[Value | None, ...] | None = op.inputs
            else:
                op = self._makers[v]
                inputs = self._in_calls(op, before)
            if inputs is None or len(op.outputs) > 1:
                return None
            self._again[v] = self._value(v, "in_calls")
            before.append(replace(op, inputs=inputs, outputs=(self._again[v],)))
        return self._again[v]

    def _hide(self, v: Value) -> Iterator[Operation]:
        if v not in self.hidden:
            self.hidden[v] = self._value(v, "at_run_time")
            yield Operation(AT_RUN_TIME, (v,), (self.hidden[v],), domain=DOMAIN)

    def _counted(self, op: Operation) -> list[Operation]:
        """`Range(start, limit, step)` as `Range(0, limit - start, step) + start`."""
        start, limit, step = op.reads
        length = self._value(limit, "length")
        zero = self._value(start, "zero")
        count = self._value(op.writes[0], "count")
        before = [
            Operation("Sub", (limit, start), (length,), version=14),
            Operation("Sub", (start, start), (zero,), version=14),
            replace(op, inputs=(zero, length, step), outputs=(count,)),
        ]
        before += self._hide(count)
        last = Operation("Add", (self.hidden[count], start), op.outputs, version=14)
        return [*before, last]

    def _value(
        self,
        like: Value,
        what: str,
    ) -> Value:
        name = f"{like.name}.{what}"
        while name in self._names:
            name += "_"
        self._names.add(name)
        return replace(like, name=name)
