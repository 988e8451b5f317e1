"""Applying rules to a graph until none applies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.base import events, limits
from tilewright.base.errors import CompileError
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.errors import DataDependent, definition_of_node
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.passes.simplify import captured, remove_unused, renamed
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.terms import built

FUEL = 20  # times that rules may be applied, per operation of the graph


@dataclass(frozen=True, eq=False)
class _Change:
    """A rule applied. fragment: what stands in place of the root; result: instead of its own."""

    rule: Rule
    match: Match
    fragment: Fragment
    result: Value

    @property
    def operations(self) -> Sequence[Operation]:
        """What stands in place of the root."""
        return self.fragment.operations


def rewrite(
    graph: Graph,
    rules: Iterable[Rule],
    fuel: int = FUEL,
) -> Graph:
    """`graph` with the rules applied wherever they match, the earlier rows first.

    Of matches that overlap the one that ends last is taken, which is the larger one. Emits the
    event `rule` for each. Raises CompileError naming the rule that never comes to an end.
    """
    index = _index(rules)
    names = Counter[str]()
    most = fuel * (len(graph.operations) + 1)
    applied: Counter[str] = Counter()
    while True:
        limits.check()
        changes = _sweep(graph, index, names)
        if not changes:
            return graph
        applied.update(c.rule.name for c in changes.values())
        if applied.total() > most:
            raise _endless(graph, applied)
        graph = remove_unused(_applied(graph, changes))


def _endless(graph: Graph, applied: Counter[str]) -> CompileError:
    ((name, times),) = applied.most_common(1)
    others = [n for n, count in applied.items() if n != name and count > times // 2]
    return CompileError(
        f"it does not come to an end: it was applied {times} times",
        code="TW-RULE",
        where=f"graph {graph.name!r}: rule {name!r}",
        hint=f"What it makes matches it again, or {' or '.join(others)}"
        if others
        else "What it makes matches it again: give it a condition",
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
) -> dict[Operation, _Change]:
    """Changes that do not overlap, by the operation that each replaces.

    names: how often values were named after an operation.
    """
    if not any(op.qualified in index for op in graph.operations):
        return {}
    fixed = {*graph.outputs, *captured(graph)}
    taken: set[Operation] = set()
    found: dict[Operation, _Change] = {}
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
    return found


def _change(
    graph: Graph,
    rule: Rule,
    op: Operation,
    fixed: set[Value],
    taken: set[Operation],
    names: Counter[str],
) -> _Change | None:
    for m in rule.matches(graph, op):
        if not taken.isdisjoint(m.operations):
            continue
        label = m.root.label
        f = Fragment(
            f"{label}~{names[label]}" if names[label] else label, graph.constants
        )
        try:
            with definition_of_node(m.root, f"rule {rule.name!r} fails", CompileError):
                result = built(rule.replacement, m, f)
        except DataDependent:
            continue
        if result is None or not _same_type(result, m.result, rule.keeps_type):
            continue
        made = any(result in o.writes for o in f.operations)
        if not made and m.result in fixed:
            # Its own value must be written; that is worth it only where other work goes.
            if len(m.operations) == 1:
                continue
            f.operations.append(
                Operation(
                    "Identity",
                    (result,),
                    (m.result,),
                    version=21,
                    name="out",
                )
            )
            result = m.result
            made = True
        return _Change(rule, m, f, result)
    return None


def _same_type(a: Value, b: Value, keeps_type: bool) -> bool:
    """Whether both have one type, which is known or kept by the rule."""
    if keeps_type:
        return a.kind == b.kind
    return b.static and (a.kind, a.dtype, a.shape) == (b.kind, b.dtype, b.shape)


def _applied(graph: Graph, changes: Mapping[Operation, _Change]) -> Graph:
    swap: dict[Value, Value] = {}
    constants = dict(graph.constants)
    operations: list[Operation] = []
    for op in graph.operations:
        change = changes.get(op)
        if change is None:
            operations.append(renamed(op, swap))
            continue
        constants |= change.fragment.constants
        old = change.match.result
        new = change.result
        made = any(new in o.writes for o in change.operations)
        if not made:
            swap[old] = swap.get(new, new)
        for o in change.operations:
            o = renamed(o, {**swap, new: old} if made else swap)
            if new in o.writes and new is not old:
                outputs = tuple(old if v is new else v for v in o.outputs)
                named = not o.name.startswith(f"{change.fragment.prefix}/")
                o = replace(
                    o,
                    outputs=outputs,
                    name=o.name if named else op.name,
                )
            operations.append(o)
    return graph.with_operations(operations, constants)
