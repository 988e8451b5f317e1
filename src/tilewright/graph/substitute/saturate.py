"""Equality saturation: explore all orders of substitutions at once, and pick the cheapest.

An e-graph is grown (`saturation`), and the graph with the cheapest operations is extracted. The
steps that lead to it are then taken and priced from the first graph on, as in any search; the
e-graph only says which steps to take. So a result is as correct as the rules, its derivation can be
replayed, and a step that does not pay raises the costs of its results in the next extraction.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.limits import WorkEnded
from tilewright.base.limits import check as check_compilation
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.rules.rule import Rule
from tilewright.graph.substitute.backtracking import BacktrackingResult
from tilewright.graph.substitute.egraph import Class, EGraph, ENode
from tilewright.graph.substitute.extraction import extract
from tilewright.graph.substitute.identity import Digests
from tilewright.graph.substitute.pricing import Pricing
from tilewright.graph.substitute.saturation import Saturation
from tilewright.graph.substitute.steps import Substitution, successors
from tilewright.search.frontier import best_first
from tilewright.search.result import SearchLimits, StopReason
from tilewright.search.run import SearchStopped

ROUNDS: Final = 4
NODES: Final = 400
# Share of a map's own cost, for successive extractions.
SHARES: Final = (0.5, 0.1, 0.0)
# Graphs to expand per added operation, on the way to an extracted graph.
TRIES: Final = 4
# Share of an operation's mean cost: the least cost of any, so that none is free.
LEAST: Final = 1e-3


@dataclass(frozen=True, eq=False)
class _State:
    """A graph on the way to another. nodes: those of its operations in the e-graph."""

    graph: Graph
    nodes: frozenset[ENode]
    digest: bytes
    before: _State | None = None
    step: Substitution | None = None

    @property
    def way(self) -> list[_State]:
        """The states from the first graph to this one."""
        found, state = [self], self
        while state.before is not None:
            state = state.before
            found.append(state)
        return found[::-1]


class _Guide:
    """Finds the steps from a graph to another one in its e-graph."""

    def __init__(
        self,
        graph: Graph,
        egraph: EGraph,
        rules: Sequence[Rule],
        fallback: FallbackProvider | None,
    ) -> None:
        self.egraph = egraph
        self._rules = {rule.name: rule for rule in rules}
        self._fallback = fallback
        self._digests = Digests()
        self._places = {v: egraph.place(v, {}) for v in graph.inputs}
        nodes = self._nodes(graph)
        assert nodes is not None, (
            "an e-graph contains the operations that it was made from"
        )
        self.start = _State(graph, nodes, self._digests.graph(graph))

    def towards(self, target: frozenset[ENode], limits: SearchLimits | None) -> _State:
        """The graph of these nodes, or one that has most of them."""
        needed = self._needed(target)
        names = {n.rule for n in needed if n.rule} | self.egraph.equal
        rules = [rule for name, rule in self._rules.items() if name in names]
        allowed = needed | self.start.nodes

        def expand(state: _State) -> Iterator[_State]:
            for step, graph in successors(state.graph, rules, self._fallback):
                nodes = self._nodes(graph)
                if nodes is not None and nodes <= allowed:
                    digest = self._digests.graph(graph)
                    yield _State(graph, nodes, digest, state, step)

        return best_first(
            [self.start],
            expand,
            lambda state: float(len(target - state.nodes)),
            key=lambda state: state.digest,
            expansions=TRIES * max(1, len(needed - self.start.nodes)),
            limits=limits,
            lower=0.0,
        ).state

    def _needed(self, target: frozenset[ENode]) -> set[ENode]:
        """The nodes, and everything that rules matched on the way to them."""
        found: set[ENode] = set()
        waiting = list(target)
        while waiting:
            node = self.egraph.kept(waiting.pop())
            if node not in found:
                found.add(node)
                waiting += node.origin
        return found

    def _nodes(self, graph: Graph) -> frozenset[ENode] | None:
        """The nodes of a graph's operations; None if one is missing."""
        places: dict[Value, Class] = dict(self._places)
        found = set()
        for op in graph.operations:
            node = self.egraph.lookup(op, places, graph.constants)
            if node is None and op.qualified == "Identity" and op.inputs[0] in places:
                places[op.writes[0]] = places[op.reads[0]]
                continue
            if node is None:
                return None
            found.add(node)
            for v, c in zip(op.outputs, node.writes, strict=True):
                if v is not None and c is not None:
                    places[v] = c
        return frozenset(found)


def saturate(
    graph: Graph,
    rules: Sequence[Rule],
    pricing: Pricing,
    *,
    rounds: int = ROUNDS,
    most: int = NODES,
    limits: SearchLimits | None = None,
    fallback: FallbackProvider | None = None,
) -> BacktrackingResult:
    """The cheapest graph found in an e-graph of `graph`, and the steps to it.

    rounds: how often to apply all rules. most: stop growing the e-graph at this many nodes.
    """
    clock = _Clock(limits or SearchLimits())
    first = pricing.whole(graph)
    grown = Saturation(graph, rules, fallback)
    grown.grow(rounds, most, clock)
    guide = _Guide(graph, grown.egraph, rules, fallback)
    totals = {guide.start: first}
    try:
        floor = LEAST * (first / max(1, len(graph.operations)) or 1.0)
        extra: defaultdict[ENode, float] = defaultdict(float)
        for share in SHARES:
            costs = {
                node: extra[node] + floor + pricing.alone(part, share)
                for node, part in _parts(grown.egraph, clock)
            }
            target = frozenset(extract(grown.egraph, costs))
            end = guide.towards(target, SearchLimits(until=clock))
            _price(end, totals, extra, pricing, clock)
    except SearchStopped:
        pass
    except WorkEnded:
        clock.stop = StopReason.UNTIL
    found = min(totals, key=totals.__getitem__)
    steps = tuple(
        replace(after.step, before=totals[before], after=totals[after])
        for before, after in pairwise(found.way)
        if after.step is not None
    )
    return BacktrackingResult(
        found.graph, totals[found], first, steps, clock.stop, len(totals)
    )


class _Clock:
    """Whether the search must end. stop: why."""

    def __init__(self, limits: SearchLimits) -> None:
        self.stop = StopReason.FINISHED
        self._limits = limits
        self._start = time.monotonic()

    def __call__(self) -> bool:
        check_compilation()
        limits = self._limits
        since = time.monotonic() - self._start
        if limits.seconds is not None and since >= limits.seconds:
            self.stop = StopReason.SECONDS
        if limits.until is not None and limits.until():
            self.stop = StopReason.UNTIL
        return self.stop is not StopReason.FINISHED

    def expect_time(self, priced: int) -> None:
        """Raise Stopped if the search must end after pricing this many graphs."""
        most = self._limits.evaluations
        if most is not None and priced >= most:
            self.stop = StopReason.EVALUATIONS
            raise SearchStopped(self.stop)
        if self():
            raise SearchStopped(self.stop)


def _price(
    end: _State,
    totals: dict[_State, float],
    extra: defaultdict[ENode, float],
    pricing: Pricing,
    clock: _Clock,
) -> None:
    """Price the states on a way; nodes of steps that do not pay cost more. May raise Stopped."""
    for before, after in pairwise(end.way):
        clock.expect_time(len(totals))
        change = pricing.change(before.graph, after.graph)
        totals[after] = totals[before] + change
        events.emit("substitution", name=after.step.rule if after.step else "")
        for node in after.nodes - before.nodes:
            extra[node] += max(0.0, change)


def _parts(egraph: EGraph, clock: _Clock) -> Iterator[tuple[ENode, Graph]]:
    """Each node as a separate graph. May raise Stopped."""
    arrays = egraph.known()
    for node in egraph.nodes:
        clock.expect_time(0)
        op = egraph.operation(node)
        inputs = tuple(v for v in op.reads if v not in arrays)
        known = {v: arrays[v] for v in op.reads if v in arrays}
        yield node, Graph("part", inputs, op.writes, (op,), known)
