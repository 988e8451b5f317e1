"""The invariants of a Graph: operands defined before use, unique names, no cycles."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.base.errors import ModelError
from tilewright.graph.nodes import Graph, Operation, Value


def verify(graph: Graph, outer: Iterable[Value] = ()) -> None:
    """Raise ModelError naming the node and tensor of the first broken invariant.

    outer: values of the enclosing graphs, for a subgraph.
    """
    where = f"graph {graph.name!r}"
    scope = dict.fromkeys(outer)
    names: dict[str, Value] = {}
    for v in graph.values:
        if names.setdefault(v.name, v) is not v:
            raise ModelError(f"two values are named {v.name!r}", where=where)
    for v in (*graph.inputs, *graph.constants):
        scope[v] = None
    for op in graph.operations:
        _check_operands(graph, op, scope, where)
        for v in op.writes:
            if v in scope:
                raise ModelError(
                    f"{v.name!r} is written twice, the second time here",
                    where=f"{where}, node {op.label!r}",
                )
            scope[v] = None
        for inner in op.subgraphs:
            verify(inner, scope)
    for v in graph.outputs:
        if v not in scope:
            raise ModelError(f"nothing computes the output {v.name!r}", where=where)


def _check_operands(
    graph: Graph,
    op: Operation,
    scope: dict[Value, None],
    where: str,
) -> None:
    for v in op.reads:
        if v in scope:
            continue
        place = f"{where}, node {op.label!r} ({op.qualified})"
        writer = graph.producer(v)
        if writer is None:
            raise ModelError(f"reads {v.name!r}, which nothing defines", where=place)
        cycle = find_cycle(graph.operations)
        if cycle:
            raise cycle_error(cycle, where)
        raise ModelError(
            f"reads {v.name!r} before node {writer.label!r} writes it", where=place
        )


def cycle_error(cycle: list[Operation], where: str) -> ModelError:
    """The error for operations that depend on each other."""
    names = [op.label for op in cycle]
    shown = " -> ".join(names[:6] + (["..."] if len(names) > 6 else []) + [names[0]])
    return ModelError(
        f"the nodes depend on each other in a cycle: {shown}", where=where
    )


def find_cycle(operations: Iterable[Operation]) -> list[Operation]:
    """A cycle of operations, each reading the next one's result; empty if there is none."""
    ops = list(operations)
    writer = {v: op for op in ops for v in op.writes}
    state: dict[Operation, int] = {}
    for root in ops:
        path: list[Operation] = []
        stack = [root]
        while stack:
            op = stack[-1]
            if state.get(op) is None:
                state[op] = 0
                path.append(op)
            step = next(
                (
                    w
                    for v in op.reads
                    if (w := writer.get(v)) is not None and state.get(w) != 1
                ),
                None,
            )
            if step is None:
                state[op] = 1
                stack.pop()
                if path and path[-1] is op:
                    path.pop()
            elif state.get(step) == 0:
                return path[path.index(step) :]
            else:
                stack.append(step)
    return []


def topological(operations: Iterable[Operation], where: str) -> tuple[Operation, ...]:
    """The operations in an executable order that keeps the given order as far as possible.

    Raises ModelError naming the nodes of a cycle.
    """
    ops = list(operations)
    writer = {v: op for op in ops for v in op.writes}
    waiting = {
        op: {w for v in op.reads if (w := writer.get(v)) is not None} for op in ops
    }
    readers: dict[Operation, list[Operation]] = {op: [] for op in ops}
    for op, needed in waiting.items():
        for w in needed:
            readers[w].append(op)
    place = {op: n for n, op in enumerate(ops)}
    return tuple(ops[n] for n in _kahn(ops, place, waiting, readers, where))


def _kahn(
    ops: list[Operation],
    place: dict[Operation, int],
    waiting: dict[Operation, set[Operation]],
    readers: dict[Operation, list[Operation]],
    where: str,
) -> list[int]:
    import heapq

    ready = [place[op] for op in ops if not waiting[op]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        n = heapq.heappop(ready)
        order.append(n)
        for reader in readers[ops[n]]:
            waiting[reader].discard(ops[n])
            if not waiting[reader]:
                heapq.heappush(ready, place[reader])
    if len(order) < len(ops):
        raise cycle_error(find_cycle(ops), where)
    return order
