"""Growing an e-graph by substitutions: rules apply wherever they match, and both sides stay.

(Tate et al., POPL 2009; Yang et al., MLSys 2021, for graphs of tensors.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.rules.change import change_at
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.rule import Rule
from tilewright.graph.substitute.alternatives import Makers, matches
from tilewright.graph.substitute.egraph import EGraph, ENode
from tilewright.graph.substitute.steps import folded


@dataclass(frozen=True, eq=False)
class _Place:
    """A rule and a place where it matches. nodes: the matched ones."""

    rule: Rule
    match: Match
    nodes: tuple[ENode, ...]


class Saturation:
    """A growing e-graph. full: whether every rule was applied wherever it matches."""

    def __init__(
        self,
        graph: Graph,
        rules: Sequence[Rule],
        fallback: FallbackProvider | None = None,
    ) -> None:
        self.egraph = EGraph(graph)
        self.full = False
        self._graph = graph
        self._rules = rules
        self._fallback = fallback
        self._done: set[tuple[object, ...]] = set()
        self._applied = 0

    def grow(
        self, rounds: int, most: int, ended: Callable[[], bool] = lambda: False
    ) -> None:
        """Apply the rules in rounds, until nothing is new, the e-graph is full, or `ended`."""
        for _ in range(rounds):
            places = _in_turn(self._places())
            if not places:
                self.full = True
                return
            for place in places:
                if len(self.egraph.nodes) >= most or ended():
                    self.egraph.rebuild()
                    return
                self._apply(place)
            self.egraph.rebuild()

    def _places(self) -> Iterator[_Place]:
        """New matches of rules, in a fixed order."""
        egraph = self.egraph
        node_of = {egraph.operation(node): node for node in egraph.nodes}
        numbers: dict[object, object] = {op: n.number for op, n in node_of.items()}
        numbers.update((v, c) for v, c in egraph.standing().items())
        given = {egraph.value(c) for c in egraph.given}
        makers: dict[Value, list[Operation]] = {}
        for op in node_of:
            for v in op.writes:
                if v not in given:
                    makers.setdefault(v, []).append(op)
        base = self._base(makers)
        for rule in self._rules:
            names = rule.names
            for op in node_of:
                if op.qualified not in names or given.issuperset(op.writes):
                    continue
                for m in matches(base, makers, rule, op):
                    taken = (*_in_order(m), *m.also)
                    nodes = tuple(node_of[o] for o in dict.fromkeys(taken))
                    key = _key(rule, m, numbers)
                    if key not in self._done:
                        self._done.add(key)
                        yield _Place(rule, m, nodes)

    def _base(self, makers: Makers) -> Graph:
        """Map each class to its first node, which does not depend on the class."""
        egraph = self.egraph
        outputs = tuple(egraph.value(c) for c in egraph.outputs)
        order: dict[Operation, None] = {}
        waiting = [(v, False) for v in reversed(outputs)]
        while waiting:
            v, ready = waiting.pop()
            if v not in makers or makers[v][0] in order:
                continue
            op = makers[v][0]
            if ready:
                order[op] = None
            else:
                waiting.append((v, True))
                waiting += [(r, False) for r in reversed(op.reads)]
        return Graph(
            "saturated", self._graph.inputs, outputs, tuple(order), egraph.known()
        )

    def _apply(self, place: _Place) -> None:
        """Add the replacement for a match and declare both sides equal."""
        m, egraph = place.match, self.egraph
        self._applied += 1
        change = change_at(m.graph, place.rule, m, set(), self._applied)
        if change is None:
            return
        made = {v for op in change.operations for v in op.writes}
        reads = {v for op in change.operations for v in op.reads} - made
        constants = {**m.graph.constants, **change.fragment.constants}
        known = {v: constants[v] for v in (*reads, *change.results) if v in constants}
        part = folded(
            Graph(
                "made",
                tuple(v for v in reads if v not in known),
                tuple(dict.fromkeys(change.results)),
                tuple(change.operations),
                known,
            ),
            self._fallback,
        )
        egraph.add(part.operations, part.constants, place.rule.name, place.nodes)
        for old, new in zip(m.results, change.results, strict=True):
            there = egraph.place(old, {})
            egraph.union(there, egraph.place(new, part.constants), place.rule.name)
        events.emit("saturated", rule=place.rule.name, nodes=len(egraph.nodes))


def _key(rule: Rule, m: Match, numbers: Mapping[object, object]) -> tuple[object, ...]:
    """Equal for repeated matches. numbers: of operations and of values, by class."""

    def named(value: object) -> object:
        known = isinstance(value, Operation | Value)
        return (type(value).__name__, numbers[value]) if known else repr(value)

    members = (m.root, *m.bound.values(), *m.also)
    return (rule.name, *map(named, members))


def _in_turn(places: Iterable[_Place]) -> list[_Place]:
    """The first place of each rule, then the second, so that no rule uses up all nodes."""
    counts: Counter[str] = Counter()
    numbered = []
    for place in places:
        numbered.append((counts[place.rule.name], place))
        counts[place.rule.name] += 1
    return [place for _, place in sorted(numbered, key=lambda pair: pair[0])]


def _in_order(m: Match) -> list[Operation]:
    """The operations of a match: the root, then the others in matching order."""
    inner = [v for v in m.bound.values() if isinstance(v, Operation)]
    return [m.root, *inner]
