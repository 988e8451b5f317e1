"""What a step costs, by the operations around it alone.

A cost of graphs (the time of the kernels after fusion) is expensive to find and changes only where
a substitution changed something. So the difference is taken between two windows: the operations
that went or came with those some edges away, as graphs of their own. Windows of one structure, as
in the layers of a network, are asked about once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.graph.nodes import Graph
from tilewright.graph.substitute.identity import Digests
from tilewright.graph.substitute.parts import extract, neighborhood

# What a graph costs: seconds, or another number that is not negative.
GraphCost = Callable[[Graph], float]

# Edges from a change that fusion may look past: an operator, its activation, what reads that.
RADIUS: Final = 2


class Pricing:
    """A cost of graphs, remembered by structure. asked: how often it was computed."""

    def __init__(self, cost: GraphCost, radius: int = RADIUS) -> None:
        self._cost = cost
        self._radius = radius
        self._digests = Digests(contents=False)
        self._known: dict[bytes, float] = {}
        self.asked = 0

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
