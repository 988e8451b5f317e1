"""A rule applied at one place of a graph."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError
from tilewright.graph.nodes import DataDependent, Graph, Operation, Value
from tilewright.graph.ops.errors import definition_of_node
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.passes.simplify import (
    captured,
    remove_unused,
    renamed,
)
from tilewright.graph.renaming import names_in
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.terms import built


@dataclass(frozen=True, eq=False)
class AppliedRule:
    """One application of a rule. fragment: replaces the root. results: those of the match."""

    rule: Rule
    match: Match
    fragment: Fragment
    results: tuple[Value, ...]

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations that replace the root."""
        return self.fragment.operations


def places(graph: Graph, rule: Rule) -> Iterator[Match]:
    """Every way to apply a rule to a graph, in the order of its operations."""
    names = rule.names
    for op in graph.operations:
        if op.qualified in names:
            yield from rule.matches(graph, op)


def apply(
    graph: Graph,
    rule: Rule,
    m: Match,
) -> Graph | None:
    """The graph with a rule applied at one match.

    None if the sides differ in type, or if operations would depend on each other in a cycle.
    """
    change = change_at(
        graph,
        rule,
        m,
        fixed_values(graph),
        _unused(graph, m.root),
    )
    if change is None:
        return None
    after = applied(graph, {m.root: change})
    return None if after is None else remove_unused(after)


def _unused(graph: Graph, root: Operation) -> int:
    """The first number that is not yet in the name of a value made from `root`.

    Subgraphs count, as a value with the same name there would hide the new value.
    """
    names = {name.rpartition("/")[0] for name in names_in(graph)}
    numbers = (n for n in range(len(names) + 1) if _prefix(root, n) not in names)
    return next(numbers)


def _prefix(root: Operation, number: int) -> str:
    return f"{root.label}~{number}" if number else root.label


def fixed_values(graph: Graph) -> set[Value]:
    """The values that must keep their identity."""
    return {*graph.outputs, *captured(graph)}


def change_at(
    graph: Graph,
    rule: Rule,
    m: Match,
    fixed: set[Value],
    number: int,
) -> AppliedRule | None:
    """The change that a rule makes for a match; None if it cannot be applied there.

    number: distinguishes names made here from those of earlier changes to the same operation.
    """
    f = Fragment(_prefix(m.root, number), graph.constants)
    try:
        with definition_of_node(
            m.root,
            f"rule {rule.name!r} fails",
            CompileError,
        ):
            results = built(rule.replacement, m, f)
    except DataDependent:
        return None
    if results is None:
        return None
    if len(results) != len(m.results):
        raise rule.error(f"it gives {len(results)} results for {len(m.results)}")
    pairs = list(zip(m.results, results, strict=True))
    if not all(_same_type(new, old, rule.keeps_type) for old, new in pairs):
        return None
    found: list[Value] = []
    for old, new in pairs:
        made = any(new in o.writes for o in f.operations) and new not in found
        if made or old not in fixed:
            found.append(new)
            continue
        # Its own value must be written; that pays only if other work disappears.
        if len(m.operations) == 1:
            return None
        found.append(_copy(f, new, old))
    return AppliedRule(rule, m, f, tuple(found))


def _copy(f: Fragment, source: Value, named: Value) -> Value:
    copy = Operation(
        "Identity",
        (source,),
        (named,),
        version=21,
        name="out",
    )
    f.operations.append(copy)
    return named


def _same_type(a: Value, b: Value, keeps_type: bool) -> bool:
    """Whether both have the same type, which is known or preserved by the rule."""
    if keeps_type:
        return a.kind == b.kind
    return b.static and (a.kind, a.dtype, a.shape) == (
        b.kind,
        b.dtype,
        b.shape,
    )


def applied(graph: Graph, changes: Mapping[Operation, AppliedRule]) -> Graph | None:
    """The graph with changes that do not overlap, by the operation that each replaces.

    None if operations would depend on each other in a cycle.
    """
    swap: dict[Value, Value] = {}
    constants = dict(graph.constants)
    operations: list[Operation] = []
    replaced = {op for change in changes.values() for op in change.match.also}
    for op in graph.operations:
        change = changes.get(op)
        if change is None and op not in replaced:
            operations.append(renamed(op, swap))
        elif change is not None:
            constants |= change.fragment.constants
            back = _results(change, swap)
            operations += _placed(op, change, swap, back)
    if replaced:
        ordered = _in_order([renamed(op, swap) for op in operations])
        if ordered is None:
            return None
        operations = ordered
    return graph.with_operations(operations, constants)


def _results(change: AppliedRule, swap: dict[Value, Value]) -> dict[Value, Value]:
    """New results by the old ones whose values they replace; the others go into `swap`."""
    written = {v for op in change.operations for v in op.writes}
    back: dict[Value, Value] = {}
    for old, new in zip(change.match.results, change.results, strict=True):
        if new in written and new not in back:
            back[new] = old
        else:
            same = back.get(new, new)
            swap[old] = swap.get(same, same)
    return back


def _placed(
    root: Operation,
    change: AppliedRule,
    swap: Mapping[Value, Value],
    back: Mapping[Value, Value],
) -> Iterator[Operation]:
    """The operations of a change, writing the values that they replace."""
    for op in change.operations:
        op = renamed(op, {**swap, **back})
        if any(back.get(v, v) is not v for v in op.writes):
            outputs = tuple(None if v is None else back.get(v, v) for v in op.outputs)
            named = not op.name.startswith(f"{change.fragment.prefix}/")
            name = op.name if named else root.name
            op = replace(op, outputs=outputs, name=name)
        yield op


def _in_order(
    operations: Sequence[Operation],
) -> list[Operation] | None:
    """Operations after those they read, otherwise in their old order; None for a cycle."""
    made = {v: n for n, op in enumerate(operations) for v in op.writes}
    waits = [{made[v] for v in op.reads if v in made} for op in operations]
    readers: dict[int, list[int]] = {}
    for n, before in enumerate(waits):
        for other in before:
            readers.setdefault(other, []).append(n)
    ready = [n for n, before in enumerate(waits) if not before]
    found: list[Operation] = []
    while ready:
        n = heapq.heappop(ready)
        found.append(operations[n])
        for later in readers.get(n, ()):
            waits[later].discard(n)
            if not waits[later]:
                heapq.heappush(ready, later)
    return found if len(found) == len(operations) else None
