"""Arrays of a size's extent whose numbers depend on another size: each call computes them.

Shape arithmetic gives them when the model is compiled for one size: the positions past + 0, past +
1, ... of a sequence behind a cache, or where each sentence of a batch begins in a flat mask. For a
range of sizes no constant has all of them. What they are computed from may be one: 0, 1, ... up to
the largest size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tilewright.base.errors import TilewrightError
from tilewright.driver.ranges.generalize import is_corner
from tilewright.driver.ranges.sample_points import pattern
from tilewright.driver.ranges.size_terms import Extents
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.at_run_time import AT_RUN_TIME, DOMAIN
from tilewright.graph.specialize import InferredTypes
from tilewright.runtime.dispatch import Allowed

Arrays = Sequence[Any]
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
    has the same extents at all sizes.
    """
    if all(len(e) == 1 for e in allowed.values()):
        return graph
    typings = _typings(allowed, typing_at)
    if not typings:
        return graph
    known = {v: a for op in graph.operations for v, a in _known(op, typings)}
    made = _Computed(graph, known)
    operations = [new for op in graph.operations for new in made.operations(op)]
    if not made.hidden:
        return graph
    return graph.with_operations(operations)


def _typings(
    allowed: Allowed, typing_at: Callable[[Extents], InferredTypes]
) -> list[InferredTypes]:
    """The types at the pattern, and where one size is another one; empty if it is invalid there."""
    start = pattern(allowed)
    points = [start]
    for name, extents in allowed.items():
        others = sorted(extents, key=lambda n: (abs(n - start[name]), -n))
        points += [{**start, name: n} for n in others[1:2]]
    try:
        return [typing_at(point) for point in points]
    except TilewrightError:  # a model that needs a step: the error is told later
        return []


def _known(
    op: Operation, typings: Sequence[InferredTypes]
) -> Iterator[tuple[Value, Arrays]]:
    """The values that an operator touches whose numbers are known, with these."""
    for v in (*op.reads, *op.writes):
        arrays = [t.known.get(t.env.get(v, v)) for t in typings]
        if not any(a is None for a in arrays):
            yield v, arrays


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
    ) -> None:
        self._known = known
        self._names = {v.name for op in graph.operations for v in op.writes}
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
        if op.subgraphs or all(map(_is_one, results)):
            return [op]
        operands = [self._known.get(v) for v in op.reads]
        if any(a is None or not _is_one(a) for a in operands):
            return [op]
        arrays = [v for v in op.reads if self._grows(v)]
        if op.qualified != "Range" and not arrays:
            return [op]
        self.late.update(op.writes)
        if op.qualified == "Range":
            return self._counted(op)
        before = [new for v in dict.fromkeys(arrays) for new in self._hide(v)]
        inputs = tuple(self.hidden.get(v, v) if v in arrays else v for v in op.inputs)
        return [*before, replace(op, inputs=inputs)]

    def _grows(self, v: Value) -> bool:
        """Whether its extents depend on sizes; others may be the shape of a result."""
        return len({a.shape for a in self._known[v]}) > 1

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
