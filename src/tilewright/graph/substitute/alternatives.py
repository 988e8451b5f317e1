"""Matching rules against an e-graph, where any node of a class may compute it.

A rule expects a Graph, in which one operation computes each value. So it is shown a base graph, in
which some values are computed by another node of their class: at first none, then for each value
whose producer the rule asked for, each alternative in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.rule import Rule

Makers = Mapping[Value, Sequence[Operation]]

# Most graphs that a rule is shown for one operation.
MOST: Final = 64


@dataclass(frozen=True, eq=False)
class AlternativeGraph(Graph):
    """A graph with alternative nodes for some of its values.

    base: without alternatives. chosen: operations that replace the base's, by the values that they
    compute. makers: all operations by the values that they compute, except inputs and constants.
    asked: the values with alternatives that a rule asked for, with the answers.
    """

    base: Graph | None = None
    chosen: Mapping[Value, Operation] = field(default_factory=dict)
    makers: Makers = field(default_factory=dict)
    asked: dict[Value, Operation] = field(default_factory=dict)

    def producer(self, value: Value) -> Operation | None:
        """The operation that computes a value here."""
        if value in self.chosen:
            return self.chosen[value]
        assert self.base is not None
        several = self.makers.get(value, ())
        found = self.base.producer(value) or (several[0] if several else None)
        if found is not None and len(several) > 1:
            self.asked[value] = found
        return found

    def users(self, value: Value) -> tuple[Operation, ...]:
        """The operations that read a value: the base's and the chosen ones."""
        assert self.base is not None
        users = self.base.users(value)
        more = [op for op in self.chosen.values() if value in op.reads]
        return tuple(dict.fromkeys((*users, *more)))


def matches(
    base: Graph, makers: Makers, rule: Rule, root: Operation
) -> Iterator[Match]:
    """The ways to apply a rule at an operation, whichever nodes compute its operands."""
    own = dict.fromkeys(root.writes, root)
    inside = base.producer(root.writes[0]) is root
    operations = base.operations if inside else (*base.operations, root)
    waiting: list[Mapping[Value, Operation]] = [own]
    for _ in range(MOST):
        if not waiting:
            return
        chosen = waiting.pop()
        asked: dict[Value, Operation] = {}
        graph = AlternativeGraph(
            base.name,
            base.inputs,
            base.outputs,
            operations,
            base.constants,
            base=base,
            chosen=chosen,
            makers=makers,
            asked=asked,
        )
        yield from rule.matches(graph, root)
        waiting += reversed(list(_others(chosen, asked, makers)))


def _others(
    chosen: Mapping[Value, Operation], asked: Mapping[Value, Operation], makers: Makers
) -> Iterator[Mapping[Value, Operation]]:
    """Further choices, each of which differs from those made in its last one."""
    before = dict(chosen)
    for value, first in asked.items():
        for other in makers[value]:
            if other is not first:
                yield {**before, **dict.fromkeys(other.writes, other)}
        before[value] = first
