"""Operations of one kind that read one value: the starting point of horizontal merges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import Operator
from tilewright.graph.rules.rule import Condition, Rule, fulfilled


@dataclass(frozen=True, eq=False)
class SiblingOperations:
    """Operations with one operator and the same value as operand `shared`, none depending on
    another. alike: the condition on any two of them.

    The match is replaced at the last one; its `also` holds the others, in order.
    """

    operator: Operator
    shared: int
    alike: Sequence[Condition] = ()

    @property
    def names(self) -> frozenset[str]:
        """The qualified names of the operators at which to look for a match."""
        return self.operator.names

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """All siblings before `op` that are like it, then each of them alone."""
        source = _operand(op, self.shared)
        if source is None or len(op.writes) != 1:
            return
        fitting = []
        for other in graph.users(source):
            if other is op:
                break
            pair = Match(graph, op, {}, also=(other,))
            fits = self.operator.covers(other) and len(other.writes) == 1
            fits = fits and _operand(other, self.shared) is source
            if fits and fulfilled(self.alike, pair):
                fitting.append(other)
        groups = [tuple(fitting)] if len(fitting) > 1 else []
        for others in (
            *groups,
            *((other,) for other in fitting),
        ):
            if _independent(graph, (*others, op)):
                yield Match(graph, op, {}, also=others)

    def __str__(self) -> str:
        places = ["y", "y"]
        places[self.shared] = "x"
        return f"several {self.operator}({', '.join(places)}, ...) of one x"


def _operand(op: Operation, place: int) -> Value | None:
    return op.inputs[place] if place < len(op.inputs) else None


def _independent(graph: Graph, group: Sequence[Operation]) -> bool:
    """Whether none depends on another's result."""
    results = {v for op in group for v in op.writes}
    seen: set[Value] = set()
    waiting = [v for op in group for v in op.reads]
    while waiting:
        v = waiting.pop()
        if v in results:
            return False
        made = graph.producer(v)
        if made is not None and v not in seen:
            waiting += made.reads
        seen.add(v)
    return True


def members(m: Match) -> tuple[Operation, ...]:
    """The operations of a match in the order in which its results are given: the last one first."""
    return (m.root, *m.also)


def operands(m: Match, place: int) -> list[Value]:
    """The operand of each member at a position. Raises KeyError if one is omitted."""
    found = []
    for op in members(m):
        v = _operand(op, place)
        if v is None:
            raise KeyError(f"operand {place} of {op.label} is left out")
        found.append(v)
    return found


def merge(
    name: str,
    operator: Operator,
    shared: int,
    replacement: Callable[..., Sequence[Value] | None],
    alike: Sequence[Condition],
    samples: Callable[..., Graph],
    finite: bool = False,
) -> Rule:
    """A rule that merges siblings into one operation."""
    return Rule(
        name,
        SiblingOperations(operator, shared, tuple(alike)),
        replacement,
        when=tuple(alike),
        exact=False,
        finite=finite,
        samples=samples,
    )
