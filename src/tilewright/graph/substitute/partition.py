"""Cutting a large graph into convex parts where few substitutions apply.

The weight of a pair of operations is the number of matches that need both, plus one if they share
an edge. Maximum flow (Dinic 1970) finds the lightest cut between the first and the last operations
of a part. Backward edges have unlimited capacity, so no operation before the cut reads from after
it, and each side is convex. Sides are cut again until they are small.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from math import inf

from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.rules.change import places
from tilewright.graph.rules.rule import Rule

Edge = tuple[Operation, Operation]


def edge_weights(graph: Graph, rules: Sequence[Rule]) -> Counter[Edge]:
    """For each pair of operations, the number of matches of the rules that need both.

    These are the edges inside a match, and the pairs of operations that it replaces together.
    """
    found: Counter[Edge] = Counter()
    for rule in rules:
        for match in places(graph, rule):
            inside = match.operations
            found.update((match.root, other) for other in match.also)
            for op in inside:
                readers = {u for v in op.writes for u in graph.users(v)}
                found.update((op, user) for user in readers & inside)
    return found


def partition(
    graph: Graph, rules: Sequence[Rule], most: int
) -> list[tuple[Operation, ...]]:
    """Convex parts of at most `most` operations each, in an executable order."""
    weights = edge_weights(graph, rules)
    waiting: list[tuple[Operation, ...]] = [graph.operations]
    done: list[tuple[Operation, ...]] = []
    while waiting:
        part = waiting.pop()
        if len(part) <= most:
            done.append(part)
            continue
        before = _side(graph, part, weights)
        waiting.append(tuple(op for op in part if op not in before))
        waiting.append(tuple(op for op in part if op in before))
    return done


def _side(
    graph: Graph, part: Sequence[Operation], weights: Counter[Edge]
) -> set[Operation]:
    """The operations before the least cut; those of the first and of the last quarter are fixed."""
    place = {op: n + 1 for n, op in enumerate(part)}
    quarter = max(1, len(part) // 4)
    source, sink = 0, len(part) + 1
    flow = _Flow(len(part) + 2)
    for op in part[:quarter]:
        flow.add(source, place[op], inf)
    for op in part[-quarter:]:
        flow.add(place[op], sink, inf)
    for op in part:
        for user in {u for v in op.writes for u in graph.users(v)}:
            if user in place:
                flow.add(place[op], place[user], 1.0, inf)
    for (a, b), weight in weights.items():
        if a in place and b in place:
            flow.add(place[a], place[b], weight, weight)
    reached = flow.cut(source, sink)
    return {op for op in part if place[op] in reached}


class _Flow:
    """A network with capacities, and its maximum flow."""

    def __init__(self, size: int) -> None:
        self._out: list[list[int]] = [[] for _ in range(size)]
        self._to: list[int] = []
        self._left: list[float] = []

    def add(self, a: int, b: int, forward: float, backward: float = 0.0) -> None:
        """An edge with a capacity each way."""
        for start, end, capacity in ((a, b, forward), (b, a, backward)):
            self._out[start].append(len(self._to))
            self._to.append(end)
            self._left.append(capacity)

    def cut(self, source: int, sink: int) -> set[int]:
        """The nodes on the source's side of the least cut nearest to the source."""
        while (levels := self._levels(source))[sink] >= 0:
            nexts = [0] * len(self._out)
            while self._augment(source, sink, levels, nexts):
                pass
        return {n for n, level in enumerate(levels) if level >= 0}

    def _levels(self, source: int) -> list[int]:
        levels = [-1] * len(self._out)
        levels[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for e in self._out[node]:
                if self._left[e] > 0 and levels[self._to[e]] < 0:
                    levels[self._to[e]] = levels[node] + 1
                    queue.append(self._to[e])
        return levels

    def _augment(
        self, source: int, sink: int, levels: list[int], nexts: list[int]
    ) -> bool:
        """Augment along one more path. nexts: the next edge to try, by node."""
        path: list[int] = []
        node = source
        while node != sink:
            if nexts[node] == len(self._out[node]):
                if node == source:
                    return False
                node = self._to[path.pop() ^ 1]
                nexts[node] += 1
                continue
            e = self._out[node][nexts[node]]
            if self._left[e] > 0 and levels[self._to[e]] == levels[node] + 1:
                path.append(e)
                node = self._to[e]
            else:
                nexts[node] += 1
        amount = min(self._left[e] for e in path)
        for e in path:
            self._left[e] -= amount
            self._left[e ^ 1] += amount
        return True
