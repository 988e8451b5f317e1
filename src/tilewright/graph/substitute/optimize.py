"""The search over a whole graph: by parts if it is large, then around the cuts."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from tilewright.base import modes
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.limits import WorkEnded, ended_by
from tilewright.base.text import listing
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.rules.rule import Rule
from tilewright.graph.substitute.backtracking import BacktrackingResult, backtrack
from tilewright.graph.substitute.derivation import GraphDerivation, PartDerivation
from tilewright.graph.substitute.identity import digest, names_of
from tilewright.graph.substitute.partition import partition
from tilewright.graph.substitute.parts import convex, extract, neighborhood, splice
from tilewright.graph.substitute.pricing import GraphCost, Pricing
from tilewright.graph.substitute.saturate import NODES, saturate
from tilewright.graph.substitute.separated import merge_separated
from tilewright.graph.substitute.steps import Substitution, folded
from tilewright.graph.verify import verify
from tilewright.search.result import SearchLimits, StopReason

# Operations on each side of a cut that are searched again together.
AROUND: Final = 3


@dataclass(frozen=True)
class OptimizeSettings:
    """Options of the search. Raises InputError if they are invalid.

    alpha, patience: see `backtrack`. budget: expansions per part. part: most operations that are
    searched together. math: one of modes.MATH: "exact" uses rules that preserve every bit,
    "default" also those that round, "fast" also those that hold only for finite numbers. strategy:
    one of modes.STRATEGIES. nodes: of the e-graph of a part, for "saturate", which does not use
    alpha, budget and patience.
    """

    alpha: float = 1.05
    budget: int = 100
    patience: int | None = 5
    part: int = 40
    math: str = "fast"
    strategy: str = "backtrack"
    nodes: int = NODES

    def __post_init__(self) -> None:
        if self.math not in modes.MATH:
            raise InputError(
                f"math={self.math!r}", hint=f"choose of {listing(modes.MATH)}"
            )
        if self.strategy not in modes.STRATEGIES:
            raise InputError(
                f"there is no strategy {self.strategy!r}",
                hint=f"choose of {listing(modes.STRATEGIES)}",
            )
        if self.nodes < 1:
            raise InputError(f"{self.nodes!r} nodes", hint="give 1 or more")
        if not 1 <= self.alpha < float("inf"):
            raise InputError(f"alpha is {self.alpha!r}", hint="give 1 or more")
        patience = 1 if self.patience is None else self.patience
        if self.budget < 1 or self.part < 2 or patience < 1:
            raise InputError(
                f"a budget of {self.budget!r}, a patience of {self.patience!r}, parts of "
                f"{self.part!r} operations",
                hint="give a budget and a patience from 1 and parts from 2",
            )


@dataclass(frozen=True)
class OptimizeOutcome:
    """The result of a search. before, after: costs of the whole graph. interrupted: a limit or the
    caller ended the search before its budget did."""

    graph: Graph
    before: float
    after: float
    derivation: GraphDerivation
    evaluations: int
    interrupted: bool


def optimize(
    graph: Graph,
    rules: Sequence[Rule],
    cost: GraphCost,
    settings: OptimizeSettings | None = None,
    *,
    limits: SearchLimits | None = None,
    fallback: FallbackProvider | None = None,
    least: GraphCost | None = None,
    data: float = 0.0,
) -> OptimizeOutcome:
    """The cheapest graph found among those that the rules make of `graph`, or `graph` itself.

    The cost of the entire graph decides at the end, so the returned graph never costs more. least,
    data: see `Pricing`; graphs that `least` makes look too expensive are never priced. limits: the
    seconds count from the call on; after the end only the cost of the found graph is computed. If
    `limits.until` ends the search, in the middle of a cost too, not even that: the gains of the
    steps are subtracted, and only the costs of parts decide. Raises InputError for invalid
    settings, ModelError for an ill-formed graph, WorkEnded if `limits.until` is true before the
    cost of `graph` is known.
    """
    how = settings or OptimizeSettings()
    allowed = [r for r in rules if r.allowed(how.math)]
    pricing = Pricing(cost, least=least, data=data)
    bounds = limits or SearchLimits()
    search = _Search(allowed, pricing, how, bounds, fallback)
    verify(graph)
    with ended_by(bounds.until):
        start = folded(graph, fallback)
        # The seconds cover this cost too: a search that found nothing has nothing left to do.
        before = pricing.whole(start)
        try:
            found = search.whole(start)
            after = pricing.whole(found)
        except WorkEnded:
            found = search.graph or start
            after = before - search.gained
            search.interrupted = True
    if not after < before:
        found, after, search.stages = start, before, []
    verify(found)
    derivation = GraphDerivation(digest(start), digest(found), tuple(search.stages))
    return OptimizeOutcome(
        found, before, after, derivation, search.evaluations, search.interrupted
    )


class _Search:
    """A search of parts, one after another. graph, stages: the best graph and the steps so far."""

    def __init__(
        self,
        rules: Sequence[Rule],
        pricing: Pricing,
        how: OptimizeSettings,
        limits: SearchLimits,
        fallback: FallbackProvider | None,
    ) -> None:
        self.rules = rules
        self.pricing = pricing
        self.how = how
        self.limits = limits
        self.end = time.monotonic() + (limits.seconds or 0.0)
        self.fallback = fallback
        self.stages: list[PartDerivation] = []
        self.graph: Graph | None = None
        self.evaluations = 0
        self.interrupted = False

    def whole(self, graph: Graph) -> Graph:
        """The graph after searching all its parts and around the cuts between them."""
        parts = partition(graph, self.rules, self.how.part)
        if len(parts) > 1:
            graph = self._merged(graph, parts)
            parts = partition(graph, self.rules, self.how.part)
        seams = [_crossing(a, parts[n + 1 :]) for n, a in enumerate(parts[:-1])]
        for part in parts:
            graph = self.part(graph, part)
        for names in seams:
            ends = {
                op
                for op in graph.operations
                for v in (*op.reads, *op.writes)
                if v.name in names
            }
            around = convex(graph, neighborhood(graph, ends, AROUND))
            if ends and len(around) <= 2 * self.how.part:
                graph = self.part(graph, around)
        return graph

    def _merged(self, graph: Graph, parts: Sequence[Sequence[Operation]]) -> Graph:
        """The graph with siblings merged that no part contains whole."""
        found = merge_separated(
            graph, self.rules, parts, self.pricing, self._ended, self.fallback
        )
        for made in found:
            self.evaluations += 1
            if made is not None:
                step, after = made
                self._found(names_of(graph.operations), (step,), after)
                graph = after
        return graph

    def _found(
        self, inside: tuple[str, ...], steps: tuple[Substitution, ...], graph: Graph
    ) -> None:
        self.stages.append(PartDerivation(inside, steps))
        self.graph = graph

    @property
    def gained(self) -> float:
        """By how much less the best graph costs, as the sum over its parts."""
        return sum(s.steps[0].before - s.steps[-1].after for s in self.stages)

    def _ended(self) -> bool:
        """Whether a limit ends the search."""
        limits = self.limits
        late = limits.seconds is not None and time.monotonic() >= self.end
        many = limits.evaluations is not None and self.evaluations >= limits.evaluations
        asked = limits.until is not None and limits.until()
        self.interrupted = late or many or asked
        return self.interrupted

    def part(self, graph: Graph, part: Collection[Operation]) -> Graph:
        """The graph with the best form found for a part."""
        if self.interrupted or not self.rules or self._ended():
            return graph
        inside = [op for op in graph.operations if op in set(part)]
        found = self._search(extract(graph, inside))
        self.evaluations += found.evaluations
        self.interrupted = found.stop in (
            StopReason.EVALUATIONS,
            StopReason.SECONDS,
            StopReason.UNTIL,
        )
        if not found.steps:
            return graph
        better = splice(graph, inside, found.graph)
        self._found(names_of(inside), found.steps, better)
        return better

    def _search(self, part: Graph) -> BacktrackingResult:
        rest = self.limits
        if rest.seconds is not None:
            left = max(0.0, self.end - time.monotonic())
            rest = replace(rest, seconds=left)
        if rest.evaluations is not None:
            more = max(1, rest.evaluations - self.evaluations)
            rest = replace(rest, evaluations=more)
        if self.how.strategy == "saturate":
            return saturate(
                part,
                self.rules,
                self.pricing,
                most=self.how.nodes,
                limits=rest,
                fallback=self.fallback,
            )
        return backtrack(
            part,
            self.rules,
            self.pricing,
            alpha=self.how.alpha,
            budget=self.how.budget,
            patience=self.how.patience,
            limits=rest,
            fallback=self.fallback,
        )


def _crossing(
    part: Sequence[Operation], later: Sequence[Sequence[Operation]]
) -> set[str]:
    """The names of the values that a part computes and a later one reads."""
    read = {v for other in later for op in other for v in op.reads}
    return {v.name for op in part for v in op.writes if v in read}
