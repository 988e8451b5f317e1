"""Merging siblings that a partition separates, such as one product in every step of a recurrence.

A partition cuts where few substitutions need both sides of an edge. Operations that read one value
may be anywhere in the graph, so that no part contains all of them. Each such match is priced in the
whole graph, the one of most operations first, and taken if it pays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.rules.change import apply, places
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.rule import Rule
from tilewright.graph.substitute.pricing import Pricing
from tilewright.graph.substitute.steps import Substitution, folded

Parts = Sequence[Sequence[Operation]]
Step = tuple[Substitution, Graph]


def merge_separated(
    graph: Graph,
    rules: Sequence[Rule],
    parts: Parts,
    pricing: Pricing,
    ended: Callable[[], bool],
    fallback: FallbackProvider | None = None,
) -> Iterator[Step | None]:
    """The steps that pay, each with the graph after it, and None for each that does not.

    ended: whether to stop.
    """
    found = list(_separated(graph, rules, parts))
    tried: list[frozenset[Operation]] = []
    cost = pricing.whole(graph) if found else 0.0
    for rule, wanted in sorted(found, key=lambda pair: -len(pair[1].operations)):
        needed = frozenset(wanted.operations)
        if ended():
            return
        if any(needed <= other for other in tried):
            continue
        tried.append(needed)
        made = _made(graph, rule, wanted, fallback)
        if made is None:
            continue
        place, after = made
        change = pricing.change(graph, after)
        if not change < 0:
            yield None
            continue
        label = wanted.root.label
        step = Substitution(rule.name, label, place, cost, cost + change)
        graph, cost = after, cost + change
        yield step, graph


def _separated(
    graph: Graph, rules: Sequence[Rule], parts: Parts
) -> Iterator[tuple[Rule, Match]]:
    """The matches of several siblings that are in more than one part."""
    part_of = {op: n for n, part in enumerate(parts) for op in part}
    for rule in rules:
        for m in places(graph, rule):
            if m.also and len({part_of[op] for op in (m.root, *m.also)}) > 1:
                yield rule, m


def _made(
    graph: Graph, rule: Rule, wanted: Match, fallback: FallbackProvider | None
) -> tuple[int, Graph] | None:
    """The place of a match in a graph, and the graph after it; None if it is not there."""
    for n, m in enumerate(places(graph, rule)):
        if m.root is wanted.root and m.also == wanted.also:
            after = apply(graph, rule, m)
            return None if after is None else (n, folded(after, fallback))
    return None
