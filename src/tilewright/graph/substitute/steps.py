"""Steps of a search: one rule applied at one place of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.passes.simplify import fold_constants, remove_unused
from tilewright.graph.rules.change import apply, places
from tilewright.graph.rules.rule import Rule

# Operators whose results hold more bytes than their operands.
PACKED: Final = ("DequantizeLinear",)


@dataclass(frozen=True)
class Substitution:
    """One application of a rule. node: the replaced operation. place: the index of the match among
    the rule's, in the order of the graph's operations. before, after: costs of the searched
    part."""

    rule: str
    node: str
    place: int
    before: float = 0.0
    after: float = 0.0


def successors(
    graph: Graph,
    rules: Sequence[Rule],
    fallback: FallbackProvider | None = None,
    near: Collection[Operation] | None = None,
) -> Iterator[tuple[Substitution, Graph]]:
    """Every graph that one step leads to, with constants folded, in a fixed order.

    near: operations of which a match must contain one; by default all.
    """
    for rule in rules:
        for n, match in enumerate(places(graph, rule)):
            if near is not None and match.operations.isdisjoint(near):
                continue
            after = apply(graph, rule, match)
            if after is not None:
                step = Substitution(rule.name, match.root.label, n)
                yield step, folded(after, fallback)


def taken(
    graph: Graph,
    step: Substitution,
    rule: Rule,
    fallback: FallbackProvider | None = None,
) -> Graph | None:
    """The graph after a step of `successors`; None if it is impossible there."""
    for n, match in enumerate(places(graph, rule)):
        if n == step.place:
            if match.root.label != step.node:
                return None
            after = apply(graph, rule, match)
            return None if after is None else folded(after, fallback)
    return None


def folded(graph: Graph, fallback: FallbackProvider | None = None) -> Graph:
    """The graph with the operators that rules applied to weights folded, as they take no run time.

    Dequantized weights stay, as products of bytes are recognized by their DequantizeLinear.
    """
    return remove_unused(fold_constants(graph, fallback, keep=PACKED))
