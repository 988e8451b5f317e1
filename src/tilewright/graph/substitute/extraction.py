"""Extracting a cheap graph from an e-graph, by the costs of single nodes.

Bottom up, each class chooses the node whose graph is cheapest. Class costs only decrease and every
node has a positive cost, so no class can depend on itself. Sharing pays only for several results
together (one product in place of two), so afterwards each node is tried for all classes that it
computes, as long as the outputs' graph gets cheaper.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from tilewright.graph.substitute.egraph import Class, EGraph, ENode

Choice = Mapping[Class, ENode]
Costs = Mapping[ENode, float]


def extract(egraph: EGraph, costs: Costs) -> list[ENode]:
    """The nodes of a cheap graph, in an executable order. costs: positive."""
    space = _Space(egraph, costs)
    choice = space.bottom_up()
    least = space.total(choice)
    better = True
    while better:
        better = False
        for node in egraph.nodes:
            other = {**choice, **dict.fromkeys(space.written(node), node)}
            if (total := space.total(other)) < least:
                choice, least, better = other, total, True
    found = space.nodes(choice)
    assert found is not None, "a choice that costs a finite amount has no cycle"
    return found


class _Space:
    """The choice of a node for each class that needs one."""

    def __init__(self, egraph: EGraph, costs: Costs) -> None:
        self._outputs = egraph.outputs
        self._find = egraph.find
        self._costs = costs
        self._all = egraph.nodes
        made = {c for node in self._all for c in node.writes if c is not None}
        self._open = made - egraph.given

    def written(self, node: ENode) -> list[Class]:
        """The classes that a node computes and that are not known."""
        return [c for c in node.writes if c is not None and c in self._open]

    def bottom_up(self) -> dict[Class, ENode]:
        """For each class, the node with the cheapest graph; shared nodes are counted repeatedly."""
        needs: dict[Class, frozenset[ENode]] = {}
        choice: dict[Class, ENode] = {}

        def cost(c: Class) -> float:
            return self._sum(needs[c]) if c in needs else inf

        better = True
        while better:
            better = False
            for node in self._all:
                reads = [c for c in node.reads if c in self._open]
                if any(c not in needs or node in needs[c] for c in reads):
                    continue
                all_of_it = frozenset([node]).union(*(needs[c] for c in reads))
                total = self._sum(all_of_it)
                for c in self.written(node):
                    if total < cost(c):
                        needs[c], choice[c], better = all_of_it, node, True
        return choice

    def total(self, choice: Choice) -> float:
        """The cost of the outputs' graph; infinite if it has a cycle."""
        found = self.nodes(choice)
        return inf if found is None else self._sum(found)

    def nodes(self, choice: Choice) -> list[ENode] | None:
        """The nodes that the outputs need, each after its operands; None for a cycle."""
        done: dict[ENode, None] = {}
        begun: set[ENode] = set()
        waiting = [(self._find(c), False) for c in reversed(self._outputs)]
        while waiting:
            c, ready = waiting.pop()
            node = choice[c] if c in self._open else None
            if node is None or node in done:
                continue
            if ready:
                done[node] = None
                continue
            if node in begun:
                return None
            begun.add(node)
            waiting.append((c, True))
            waiting += [(r, False) for r in reversed(node.reads)]
        return list(done)

    def _sum(self, nodes: frozenset[ENode] | list[ENode]) -> float:
        """Sum in a fixed order, so that equal sets have equal costs."""
        return sum(self._costs[n] for n in sorted(nodes, key=lambda n: n.number))
