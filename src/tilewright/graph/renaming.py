"""Replacing values by others everywhere in a graph, including its subgraphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.base.names import fresh
from tilewright.graph.nodes import Graph, Operation, Value


def rewire(graph: Graph, swap: Mapping[Value, Value]) -> Graph:
    """`graph` with keys of `swap` replaced by their values, both where defined and where read."""
    return replace(
        graph,
        inputs=tuple(swap.get(v, v) for v in graph.inputs),
        outputs=tuple(swap.get(v, v) for v in graph.outputs),
        operations=tuple(rewire_operation(op, swap) for op in graph.operations),
        constants={swap.get(v, v): a for v, a in graph.constants.items()},
    )


def rewire_operation(op: Operation, swap: Mapping[Value, Value]) -> Operation:
    """`op` itself where nothing changes."""
    touched = any(v in swap for v in (*op.reads, *op.writes))
    if not touched:
        return op

    def new(v: Value | None) -> Value | None:
        return None if v is None else swap.get(v, v)

    attributes = {
        k: rewire(a, swap) if isinstance(a, Graph) else a
        for k, a in op.attributes.items()
    }
    return replace(
        op,
        inputs=tuple(map(new, op.inputs)),
        outputs=tuple(map(new, op.outputs)),
        attributes=attributes,
    )


def name_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """The outputs with the given names, by renaming results or by an Identity.

    Another result or constant with such a name is renamed.
    """
    swap: dict[Value, Value] = {}
    named = set(zip(graph.outputs, names, strict=True))
    for v, name in zip(graph.outputs, names, strict=True):
        if v.name != name and v in graph.producers and v not in swap:
            swap[v] = replace(v, name=name)
    others = [
        v
        for v in (*graph.producers, *graph.constants)
        if v.name in names and (v, v.name) not in named and v not in swap
    ]
    taken = {*names_in(graph), *names} if others else set[str]()
    swap |= {v: replace(v, name=fresh(taken, v.name)) for v in others}
    graph = rewire(graph, swap)
    outputs, extra = [], []
    for v, name in zip(graph.outputs, names, strict=True):
        if v.name != name:
            copy = replace(v, name=name)
            extra.append(
                Operation(
                    "Identity",
                    (v,),
                    (copy,),
                    name=name,
                )
            )
            v = copy
        outputs.append(v)
    if not swap and not extra:
        return graph
    return graph.with_operations((*graph.operations, *extra), outputs=outputs)


def names_in(graph: Graph) -> set[str]:
    """The names of all values, including those of subgraphs."""
    inner = (names_in(g) for op in graph.operations for g in op.subgraphs)
    return {v.name for v in graph.values}.union(*inner)
