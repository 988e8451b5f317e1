"""Greedy steps that reduce the operators' arithmetic, without a search.

A match is priced by the change in arithmetic: that of the added operators minus that of the removed
ones, after constant folding. No graph is built before a step is taken, and matches with the same
structure, as in the layers of a network, are priced once. The step that saves most is taken first,
if it is expected to make the kernels around it faster; afterwards only its neighborhood is searched
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import IMPURE
from tilewright.graph.rules.change import (
    AppliedRule,
    apply,
    change_at,
    fixed_values,
    places,
)
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import Apply, Either, RuleResult
from tilewright.graph.rules.rule import Rule
from tilewright.graph.substitute.identity import Digests
from tilewright.graph.substitute.parts import neighborhood
from tilewright.graph.substitute.pricing import Pricing, arithmetic
from tilewright.graph.substitute.steps import Substitution, folded
from tilewright.ir.passes import Pass

# Distance in edges from a change beyond which matches stay valid: patterns are not deeper.
REACH: Final = 6
# Share of the graph's arithmetic; steps that save less are not priced, which takes milliseconds
# each and found none worth taking (`python -m benchmarks.least_saving`).
LEAST: Final = 1e-3

Structure = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A match that reduces the arithmetic by `saved`; those of one structure are equivalent."""

    rule: Rule
    match: Match
    structure: Structure
    saved: float


@dataclass(frozen=True)
class LowerArithmetic(Pass[Graph]):
    """Reduce arithmetic if kernels are expected to become faster; see `lower_arithmetic`.

    taken: receives the steps. A graph whose extents are set by each call is unchanged.
    """

    rules: Sequence[Rule] = field(repr=False)
    pricing: Pricing = field(repr=False)
    fallback: FallbackProvider | None = field(repr=False)
    taken: list[Substitution] = field(repr=False)

    def run(self, program: Graph) -> Graph:
        if not all(v.static for v in program.values):
            return program
        rest = self.rules, self.pricing, self.fallback
        found, steps = lower_arithmetic(program, *rest)
        self.taken.extend(steps)
        return found


def lower_arithmetic(
    graph: Graph,
    rules: Sequence[Rule],
    pricing: Pricing,
    fallback: FallbackProvider | None = None,
    least: float = LEAST,
) -> tuple[Graph, tuple[Substitution, ...]]:
    """The graph after the steps that pay, and the steps; deterministic.

    pricing: the cost of a step, evaluated for steps that save more than a share `least` of the
    arithmetic.
    """
    return _Greedy(rules, pricing, fallback, least).lowered(graph)


class _Greedy:
    """Greedy application of some rules to one graph."""

    def __init__(
        self,
        rules: Sequence[Rule],
        pricing: Pricing,
        fallback: FallbackProvider | None,
        least: float,
    ) -> None:
        self._least = least
        self._rules = [(r, r.names) for r in rules]
        self._pricing = pricing
        self._fallback = fallback
        self._digests = Digests(contents=False)
        self._counted: dict[Operation, float] = {}
        self._saved: dict[Structure, float] = {}
        self._pays: dict[Structure, bool] = {}

    def lowered(self, graph: Graph) -> tuple[Graph, tuple[Substitution, ...]]:
        steps: list[Substitution] = []
        waiting = self._candidates(graph, graph.operations)
        while waiting:
            best = max(waiting, key=lambda c: c.saved)
            waiting.remove(best)
            found = self._taken(graph, best)
            if found is None:
                continue
            step, after = found
            steps.append(step)
            near = _changed(graph, after)
            left = set(after.operations).difference(near)
            graph = after
            waiting = [c for c in waiting if c.match.operations <= left]
            waiting += self._candidates(graph, near)
        return graph, tuple(steps)

    def _taken(
        self,
        graph: Graph,
        best: _Candidate,
    ) -> tuple[Substitution, Graph] | None:
        """The step and the graph after it; None if it is not expected to be faster."""
        if not self._pays.get(best.structure, True):
            return None
        wanted = best.match
        for n, m in enumerate(places(graph, best.rule)):
            if _place(m) != _place(wanted):
                continue
            after = apply(graph, best.rule, m)
            if after is None:
                return None
            after = folded(after, self._fallback)
            if best.structure not in self._pays:
                less = self._pricing.change(graph, after) < 0
                self._pays[best.structure] = less
            if not self._pays[best.structure]:
                return None
            before = self._arithmetic(graph)
            name = best.rule.name
            events.emit("substitution", name=name)
            left = before - best.saved
            return Substitution(name, m.root.label, n, before, left), after
        return None

    def _candidates(
        self,
        graph: Graph,
        roots: Iterable[Operation],
    ) -> list[_Candidate]:
        """Every match at one of the roots that saves enough arithmetic."""
        least = self._least * self._arithmetic(graph)
        at = self._by_root(graph)
        fixed = fixed_values(graph)
        found: list[_Candidate] = []
        for op in roots:
            rules = at.get(op.qualified, ())
            matches = ((rule, m) for rule in rules for m in rule.matches(graph, op))
            for rule, m in matches:
                gone = self._counts(graph, _gone(graph, m))
                if sum(gone) <= least:
                    continue
                alike = self._structure(graph, rule, m, gone, fixed)
                if alike not in self._saved:
                    self._saved[alike] = self._priced(graph, rule, m, fixed)
                saved = self._saved[alike]
                if saved > least:
                    candidate = _Candidate(rule, m, alike, saved)
                    found.append(candidate)
        return found

    def _by_root(self, graph: Graph) -> Mapping[str, Sequence[Rule]]:
        """The rules whose operators occur in the graph, by the operator they start at."""
        there = {op.qualified for op in graph.operations}
        found: defaultdict[str, list[Rule]] = defaultdict(list)
        for rule, names in self._rules:
            if _needs(rule.pattern, there):
                for name in names & there:
                    found[name].append(rule)
        return found

    def _structure(
        self,
        graph: Graph,
        rule: Rule,
        m: Match,
        gone: Sequence[float],
        fixed: set[Value],
    ) -> Structure:
        """What determines the saving of a match: its operators and values, their roles in the
        pattern, whether results keep their names, and the arithmetic of all that may be removed."""
        operations = _in_order(m)
        values = dict.fromkeys(v for op in operations for v in (*op.writes, *op.reads))
        number = {v: n for n, v in enumerate(values)}
        parts: list[object] = [rule.name, *sorted(gone)]
        parts += (self._known(graph, v) for v in values)
        parts += map(self._digests.operator, operations)
        parts += (number.get(v) for v in m.bound.values() if isinstance(v, Value))
        parts += (v in fixed for v in m.results)
        return tuple(parts)

    def _known(self, graph: Graph, v: Value) -> object:
        """A constant's digest, or the type of any other value."""
        array = graph.constants.get(v)
        return v.type_text if array is None else self._digests.array(v, array)

    def _priced(
        self,
        graph: Graph,
        rule: Rule,
        m: Match,
        fixed: set[Value],
    ) -> float:
        """The saving of a match: negative if it costs more, 0 if it cannot be applied."""
        change = change_at(graph, rule, m, fixed, 0)
        if change is None:
            return 0.0
        read = {v for op in change.operations for v in op.reads}
        less = sum(self._counts(graph, _gone(graph, m, read)))
        return less - self._more(graph, change)

    def _more(self, graph: Graph, change: AppliedRule) -> float:
        """The arithmetic of a change's operations, except those on constants."""
        known: dict[Value, Any] = {**graph.constants, **change.fragment.constants}
        computed: set[Value] = set()
        total = 0.0
        for op in change.operations:
            constant = all(v in known or v in computed for v in op.reads)
            if constant and not has_trait(op, IMPURE):
                computed.update(op.writes)
            else:
                total += arithmetic(op, known)
        return total

    def _counts(self, graph: Graph, operations: Iterable[Operation]) -> list[float]:
        for op in operations:
            if op not in self._counted:
                self._counted[op] = arithmetic(op, graph.constants)
        return [self._counted[op] for op in operations]

    def _arithmetic(self, graph: Graph) -> float:
        return sum(self._counts(graph, graph.operations))


def _changed(before: Graph, after: Graph) -> list[Operation]:
    """The operations near the added ones, in order."""
    known = set(before.operations)
    came = [op for op in after.operations if op not in known]
    near = neighborhood(after, came, REACH)
    return [op for op in after.operations if op in near]


def _needs(part: Any, there: set[str]) -> bool:
    """Whether a part of a pattern can match among operators with these names."""
    match part:
        case Apply():
            named = not part.operator.names.isdisjoint(there)
            return named and all(_needs(x, there) for x in part.operands)
        case RuleResult():
            return _needs(part.of, there)
        case Either():
            return any(_needs(x, there) for x in part.forms)
        case _:
            return True


def _place(m: Match) -> tuple[object, ...]:
    """What differs between matches of a rule: operands of a commutative operator match in both
    orders, which may save different amounts."""
    bound = {p: x for p, x in m.bound.items() if isinstance(x, Operation | Value)}
    return m.root, m.also, bound


def _in_order(m: Match) -> dict[Operation, None]:
    """The operations of a match: those replaced, then the others in the pattern's order."""
    bound = [x for x in m.bound.values() if isinstance(x, Operation)]
    return dict.fromkeys((m.root, *m.also, *bound))


def _gone(
    graph: Graph,
    m: Match,
    read: Iterable[Value] = (),
) -> set[Operation]:
    """Operations without readers once the match's replacement reads these values."""
    needed = {*graph.outputs, *read}
    gone = {m.root, *m.also}
    waiting = [v for op in gone for v in op.reads]
    while waiting:
        made = graph.producer(waiting.pop())
        if made is None or made in gone:
            continue
        if any(_stays(graph, v, needed, gone) for v in made.writes):
            continue
        gone.add(made)
        waiting += made.reads
    return gone


def _stays(
    graph: Graph,
    v: Value,
    needed: set[Value],
    gone: set[Operation],
) -> bool:
    """Whether a value still has readers without those operations."""
    return v in needed or not gone.issuperset(graph.users(v))
