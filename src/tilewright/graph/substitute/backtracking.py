"""Relaxed backtracking: best-first search that tolerates steps that cost a little more.

(MetaFlow: Jia et al., SysML 2019.) The search repeatedly expands the cheapest unexpanded graph into
all graphs that one substitution makes of it. It drops those that cost alpha times the best so far
or more, and visits each graph once. With alpha 1 it follows only improvements. If costs can be
guessed, a graph is priced when its guess is the lowest of those waiting. After a step that did not
pay, only steps near it are tried: independent ones were available before it as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.rule import Rule
from tilewright.graph.substitute.identity import Digests
from tilewright.graph.substitute.parts import neighborhood
from tilewright.graph.substitute.pricing import RADIUS, Pricing
from tilewright.graph.substitute.steps import Substitution, successors
from tilewright.search.frontier import best_first
from tilewright.search.result import SearchLimits, StopReason


@dataclass(frozen=True)
class BacktrackingResult:
    """The result of searching one graph. cost, start: of the found and of the initial graph."""

    graph: Graph
    cost: float
    start: float
    steps: tuple[Substitution, ...]
    stop: StopReason
    evaluations: int


@dataclass(frozen=True, eq=False)
class _State:
    """A graph in the search. before, base: the graph it was made from, and that one's cost.

    anchor: the last one on the way to `before` that was the cheapest at the time.
    """

    graph: Graph
    digest: bytes
    steps: tuple[tuple[Substitution, bytes], ...] = ()
    before: Graph | None = None
    base: float = 0.0
    anchor: _State | None = None


class _Space:
    """The reachable graphs, and their costs by digest."""

    def __init__(
        self, rules: Sequence[Rule], pricing: Pricing, fallback: FallbackProvider | None
    ) -> None:
        self.rules = rules
        self.pricing = pricing
        self.fallback = fallback
        self.digests = Digests()
        self.costs: dict[bytes, float] = {}

    def expand(self, state: _State) -> Iterator[_State]:
        base = self.costs[state.digest]
        anchor = state.anchor
        near = None
        if anchor is None or base < self.costs[anchor.digest]:
            anchor = state
        else:
            # A step without gain pays off only through steps that it enables, which are near it.
            known = set(anchor.graph.operations)
            came = [op for op in state.graph.operations if op not in known]
            near = neighborhood(state.graph, came, RADIUS)
        for step, graph in successors(state.graph, self.rules, self.fallback, near):
            digest = self.digests.graph(graph)
            steps = (*state.steps, (step, digest))
            yield _State(graph, digest, steps, state.graph, base, anchor)

    def guess(self, state: _State) -> float:
        assert state.before is not None, "the first graph is priced at once"
        return state.base + self.pricing.guess(state.before, state.graph)

    def cost(self, state: _State) -> float:
        if state.before is None:
            found = self.pricing.whole(state.graph)
        else:
            found = state.base + self.pricing.change(state.before, state.graph)
        self.costs[state.digest] = found
        events.emit("substitution", name=state.steps[-1][0].rule if state.steps else "")
        return found


def backtrack(
    graph: Graph,
    rules: Sequence[Rule],
    pricing: Pricing,
    *,
    alpha: float = 1.05,
    budget: int = 100,
    patience: int | None = None,
    limits: SearchLimits | None = None,
    fallback: FallbackProvider | None = None,
) -> BacktrackingResult:
    """The cheapest graph found within `budget` expansions.

    patience: the search ends after this many consecutive expansions without improvement. Raises
    InputError if alpha, budget or patience is below 1.
    """
    space = _Space(rules, pricing, fallback)
    start = _State(graph, space.digests.graph(graph))
    result = best_first(
        [start],
        space.expand,
        space.cost,
        key=lambda state: state.digest,
        guess=space.guess if pricing.guesses else None,
        slack=alpha,
        patience=patience,
        expansions=budget,
        limits=limits,
    )
    best, costs = result.state, space.costs
    before = costs[start.digest]
    steps = []
    for step, digest in best.steps:
        steps.append(replace(step, before=before, after=costs[digest]))
        before = costs[digest]
    first = costs[start.digest]
    return BacktrackingResult(
        best.graph, result.cost, first, tuple(steps), result.stop, result.evaluations
    )
