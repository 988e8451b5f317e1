"""Applying rules to a graph until none applies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tilewright.base import events, limits
from tilewright.base.errors import CompileError
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.passes.simplify import remove_unused
from tilewright.graph.rules.change import AppliedRule, applied, change_at, fixed_values
from tilewright.graph.rules.rule import Rule

FUEL = 20  # most applications of rules per operation of the graph


def rewrite(
    graph: Graph,
    rules: Iterable[Rule],
    fuel: int = FUEL,
) -> Graph:
    """`graph` with the rules applied wherever they match, earlier rows first.

    Of overlapping matches the one that ends last is applied, as it is the larger one. Emits the
    event `rule` for each. Raises CompileError naming a rule that does not terminate.
    """
    index = _index(rules)
    names = Counter[str]()
    most = fuel * (len(graph.operations) + 1)
    times: Counter[str] = Counter()
    while True:
        limits.check()
        changes = _sweep(graph, index, names)
        if not changes:
            return graph
        times.update(c.rule.name for c in changes.values())
        if times.total() > most:
            raise _endless(graph, times)
        after = applied(graph, changes)
        if after is None:
            (change,) = changes.values()
            raise change.rule.error("its replacement depends on its own results")
        graph = remove_unused(after)


def _endless(graph: Graph, times: Counter[str]) -> CompileError:
    ((name, most),) = times.most_common(1)
    others = [n for n, count in times.items() if n != name and count > most // 2]
    return CompileError(
        f"it does not terminate: it was applied {most} times",
        code="TW-RULE",
        where=f"graph {graph.name!r}: rule {name!r}",
        hint=f"Its replacement matches it again, or {' or '.join(others)}"
        if others
        else "Its replacement matches it again: give it a condition",
    )


def _index(rules: Iterable[Rule]) -> Mapping[str, Sequence[Rule]]:
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        for name in rule.names:
            found.setdefault(name, []).append(rule)
    return found


def _sweep(
    graph: Graph,
    index: Mapping[str, Sequence[Rule]],
    names: Counter[str],
) -> dict[Operation, AppliedRule]:
    """Changes that do not overlap, by the operation that each replaces.

    names: how many values were named after each operation.
    """
    if not any(op.qualified in index for op in graph.operations):
        return {}
    fixed = fixed_values(graph)
    taken: set[Operation] = set()
    found: dict[Operation, AppliedRule] = {}
    for op in reversed(graph.operations):
        for rule in index.get(op.qualified, ()):
            if op in taken:
                change = None
            else:
                change = _change(graph, rule, op, fixed, taken, names)
            if change is not None:
                names[change.match.root.label] += 1
                taken |= change.match.operations
                found[change.match.root] = change
                events.emit(
                    "rule", set="graph", rule=rule.name, node=change.match.root.label
                )
                if change.match.also:
                    return found
    return found


def _change(
    graph: Graph,
    rule: Rule,
    op: Operation,
    fixed: set[Value],
    taken: set[Operation],
    names: Counter[str],
) -> AppliedRule | None:
    for m in rule.matches(graph, op):
        # Match one of several operations at a time: two may depend on each other.
        alone = not (m.also and taken)
        if alone and taken.isdisjoint(m.operations):
            change = change_at(graph, rule, m, fixed, names[m.root.label])
            if change is not None:
                return change
    return None
