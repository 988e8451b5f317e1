"""Parts of a graph as separate graphs, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from tilewright.base.names import fresh
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.renaming import names_in, rewire
from tilewright.graph.verify import topological


def extract(graph: Graph, part: Collection[Operation], name: str = "part") -> Graph:
    """The operations as a graph whose inputs and constants are the outside values they read.

    Its outputs are the results that are needed outside. Values are the same objects.
    """
    inside = set(part)
    operations = tuple(op for op in graph.operations if op in inside)
    made = {v for op in operations for v in op.writes}
    reads = dict.fromkeys(v for op in operations for v in op.reads if v not in made)
    needed = {v for op in graph.operations if op not in inside for v in op.reads}
    needed.update(graph.outputs)
    return Graph(
        name,
        tuple(v for v in reads if v not in graph.constants),
        tuple(v for op in operations for v in op.writes if v in needed),
        operations,
        {v: graph.constants[v] for v in reads if v in graph.constants},
    )


def splice(graph: Graph, part: Collection[Operation], new: Graph) -> Graph:
    """The graph with a convex part replaced by another form of what `extract` returned.

    New values are renamed if the graph already has their names, or if a subgraph has, where the new
    value would be hidden.
    """
    inside = set(part)
    rest = [op for op in graph.operations if op not in inside]
    kept = {v for op in rest for v in op.writes}.union(graph.inputs, graph.constants)
    taken = {v.name for v in kept} | {v.name for v in new.outputs}
    bodies = [g for op in (*rest, *new.operations) for g in op.subgraphs]
    taken = taken.union(*map(names_in, bodies))
    interface = kept.union(new.outputs)
    swap: dict[Value, Value] = {}
    for v in new.values:
        if v in interface or v in swap:
            continue
        name = fresh(taken, v.name)
        if name != v.name:
            swap[v] = replace(v, name=name)
    new = rewire(new, swap) if swap else new
    where = f"graph {graph.name!r}"
    first = next((n for n, op in enumerate(graph.operations) if op in inside), 0)
    mixed = [*rest[:first], *new.operations, *rest[first:]]
    return graph.with_operations(
        topological(mixed, where), {**graph.constants, **new.constants}
    )


def neighborhood(
    graph: Graph, start: Iterable[Operation], radius: int
) -> set[Operation]:
    """The operations at most `edges` edges away from some of `start`, including those."""
    found = set(start)
    edge = found
    for _ in range(radius):
        near = {other for op in edge for other in _beside(graph, op)}
        edge = near - found
        found = found | edge
    return found


def _beside(graph: Graph, op: Operation) -> Iterator[Operation]:
    for v in op.reads:
        if (maker := graph.producer(v)) is not None:
            yield maker
    for v in op.writes:
        yield from graph.users(v)


def convex(graph: Graph, part: Collection[Operation]) -> set[Operation]:
    """The part plus every operation on a path between two of its operations."""
    above: set[Operation] = set(part)  # reached from the part
    for op in graph.operations:
        if any(graph.producer(v) in above for v in op.reads):
            above.add(op)
    below: set[Operation] = set(part)  # reaches the part
    for op in reversed(graph.operations):
        if any(user in below for v in op.writes for user in graph.users(v)):
            below.add(op)
    return above & below
