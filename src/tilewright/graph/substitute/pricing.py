"""What a step costs, by the operations around it alone.

A cost of graphs (the time of the kernels after fusion) is expensive to find and changes only where
a substitution changed something. So the difference is taken between two windows: the operations
that went or came with those some edges away, as their own graphs. Windows of one structure, as
in the layers of a network, are priced once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import OpCall, definition_of
from tilewright.graph.substitute.identity import Digests
from tilewright.graph.substitute.parts import extract, neighborhood

# What a graph costs: seconds, or another number that is not negative.
GraphCost = Callable[[Graph], float]

# Edges from a change that fusion may look past: an operator, its activation, what reads that.
RADIUS: Final = 2


def arithmetic(op: Operation, known: Mapping[Value, Any]) -> float:
    """The additions, products and so on that an operation says it takes, in whatever kernel.

    known: constants. 0 for an operator that counts none, or whose extents are not known.
    """
    definition = definition_of(op)
    if definition is None or definition.flops is None:
        return 0.0
    if not all(v.static for v in (*op.reads, *op.writes)):
        return 0.0
    return float(definition.flops(OpCall(op, known)))


class Pricing:
    """A cost of graphs, remembered by structure. asked: how often it was computed.

    least: what a graph of one operation costs at least, however it is fused; 0 if not given.
    """

    def __init__(
        self, cost: GraphCost, radius: int = RADIUS, least: GraphCost | None = None
    ) -> None:
        self._cost = cost
        self._least = least
        self._radius = radius
        self._digests = Digests(contents=False)
        self._known: dict[bytes, float] = {}
        self._alone: dict[bytes, float] = {}
        self._of: dict[Operation, float] = {}
        self.asked = 0

    @property
    def guesses(self) -> bool:
        """Whether `guess` knows anything."""
        return self._least is not None

    def whole(self, graph: Graph) -> float:
        """The cost of a graph."""
        key = self._digests.graph(graph)
        if key not in self._known:
            self.asked += 1
            self._known[key] = self._cost(graph)
        return self._known[key]

    def change(self, before: Graph, after: Graph) -> float:
        """By how much `after`, which a substitution made of `before`, costs more."""
        old, new = set(before.operations), set(after.operations)
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
        return now - was

    def guess(self, before: Graph, after: Graph) -> float:
        """By about how much `after` costs more: what its new operations cost at least each, less
        the same of those that went. Quick, since operations of one structure are priced once."""
        old, new = set(before.operations), set(after.operations)
        came = sum(
            self._at_least(op, after) for op in after.operations if op not in old
        )
        gone = (self._at_least(op, before) for op in before.operations if op not in new)
        return came - sum(gone)

    def alone(self, part: Graph, share: float) -> float:
        """About what an operation, as a separate graph, adds to the cost of a larger one.

        share: how much of a map's cost that is, which often vanishes into another kernel. Sums and
        products cost what they do alone.
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
