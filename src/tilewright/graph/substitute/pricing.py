"""The cost of a step, from only the operations around it.

The cost of a graph (the time of the kernels after fusion) is expensive to compute and changes only
near a substitution. So two windows are compared: the removed and the added operations, each with
those a few edges away, as separate graphs. Windows with the same structure, as in the layers of a
network, are priced once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import OpCall, definition_of
from tilewright.graph.substitute.identity import Digests
from tilewright.graph.substitute.parts import extract, neighborhood

# The cost of a graph: seconds, or another nonnegative number.
GraphCost = Callable[[Graph], float]

# Edges from a change that fusion may look past: an operator, its activation, their reader.
RADIUS: Final = 2


def arithmetic(op: Operation, known: Mapping[Value, Any]) -> float:
    """The arithmetic operations that an operation declares, in whatever kernel it runs.

    known: constants. 0 for an operator without a count or with unknown extents.
    """
    definition = definition_of(op)
    if definition is None or definition.flops is None:
        return 0.0
    if not all(v.static for v in (*op.reads, *op.writes)):
        return 0.0
    return float(definition.flops(OpCall(op, known)))


def _bytes(graph: Graph) -> int:
    return sum(a.nbytes for a in graph.constants.values())


class Pricing:
    """The cost of graphs, cached by structure. asked: how often it was computed.

    least: a lower bound on the cost of a single operation, however it is fused; 0 if not given.
    data: the cost of a byte that a substitution adds to the constants, whatever reads it.
    """

    def __init__(
        self,
        cost: GraphCost,
        radius: int = RADIUS,
        least: GraphCost | None = None,
        data: float = 0.0,
    ) -> None:
        self._cost = cost
        self._data = data
        self._least = least
        self._radius = radius
        self._digests = Digests(contents=False)
        self._known: dict[bytes, float] = {}
        self._alone: dict[bytes, float] = {}
        self._of: dict[Operation, float] = {}
        self.asked = 0

    @property
    def guesses(self) -> bool:
        """Whether `guess` has any information."""
        return self._least is not None

    def whole(self, graph: Graph) -> float:
        """The cost of a graph."""
        key = self._digests.graph(graph)
        if key not in self._known:
            self.asked += 1
            self._known[key] = self._cost(graph)
        return self._known[key]

    def change(self, before: Graph, after: Graph) -> float:
        """By how much more `after`, the result of a substitution in `before`, costs."""
        old = set(before.operations)
        new = set(after.operations)
        common = old & new
        near = neighborhood(before, old - common, self._radius) | neighborhood(
            after, new - common, self._radius
        )
        near &= common
        windows = (
            extract(before, (old - common) | near),
            extract(after, (new - common) | near),
        )
        was, now = (self.whole(w) if w.operations else 0.0 for w in windows)
        more = _bytes(after) - _bytes(before)
        return now - was + self._data * max(0, more)

    def guess(self, before: Graph, after: Graph) -> float:
        """An estimate of how much more `after` costs: the lower bounds of its new operations minus
        those of the removed ones. Fast, since operations of one structure are priced once."""
        old = set(before.operations)
        new = set(after.operations)
        came = sum(
            self._at_least(op, after) for op in after.operations if op not in old
        )
        gone = (self._at_least(op, before) for op in before.operations if op not in new)
        return came - sum(gone)

    def alone(self, part: Graph, share: float) -> float:
        """An estimate of what an operation, as a separate graph, adds to the cost of a larger one.

        share: the share of a map's cost that counts, as maps often disappear into another kernel.
        Sums and products cost what they do alone.
        """
        if self._least is None:
            return self.whole(part)
        key = self._digests.graph(part)
        if key not in self._alone:
            self._alone[key] = self._least(part)
        return self._alone[key] or share * self.whole(part)

    def _at_least(self, op: Operation, graph: Graph) -> float:
        if self._least is None:
            return 0.0
        if op not in self._of:
            alone = extract(graph, [op])
            key = self._digests.graph(alone)
            if key not in self._alone:
                self._alone[key] = self._least(alone)
            self._of[op] = self._alone[key]
        return self._of[op]
