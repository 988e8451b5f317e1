"""Values that operators of bfloat16 read are rounded once, where they are produced.

    y = Cast<bfloat16>(x)   every other reader of x reads Cast<float32>(y)
    Cast(Concat(a, b))  =>  Concat(Cast(a), Cast(b)), and so for operators that move or select

A value is then in memory once, in half the bytes, and its producer's kernel rounds it. Its other
readers see it rounded, which `precision="bfloat16"` allows.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.dtypes import bfloat16, float32
from tilewright.base.names import untaken
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import JOINS, MOVES_DATA, SELECTS
from tilewright.graph.passes.simplify import merge_repeated
from tilewright.graph.renaming import names_in, rewire_operation


def round_once(graph: Graph) -> Graph:
    """The graph with each value rounded where it is produced. Values of other types stay."""
    while True:
        shared = _read_rounded(merge_repeated(graph))
        raised = _rounded_earlier(shared)
        if raised is shared:
            return shared
        graph = raised


def _fragment(graph: Graph) -> Fragment:
    """For new operations, whose results have names of their own."""
    taken = {name.split("/")[0] for name in names_in(graph)}
    return Fragment(untaken(taken, "rounded"), graph.constants)


def _rounds(op: Operation) -> bool:
    return (
        op.qualified == "Cast"
        and op.writes[0].dtype is bfloat16
        and op.reads[0].dtype is float32
    )


def _read_rounded(graph: Graph) -> Graph:
    """Readers of values that are also rounded read them rounded. Outputs of the graph stay."""
    rounding = {op.reads[0]: op for op in graph.operations if _rounds(op)}
    several = {
        v: op
        for v, op in rounding.items()
        if v in graph.producers and any(not _rounds(u) for u in graph.users(v))
    }
    if not several:
        return graph
    f = _fragment(graph)
    moved = set(several.values())
    seen: dict[Value, Value] = {}
    for op in graph.operations:
        if op in moved:
            continue  # follows the producer of what it rounds
        known = {v: seen[v] for v in op.reads if v in seen}
        f.operations.append(rewire_operation(op, known))
        for v in op.writes:
            if v in several:
                f.operations.append(several[v])
                seen[v] = f.cast(several[v].writes[0], float32)
    return graph.with_operations(f.operations, {**graph.constants, **f.constants})


def _rounded_earlier(graph: Graph) -> Graph:
    """Operands are rounded instead of results of what moves or selects elements."""
    moved = {
        p: op
        for op in graph.operations
        if _rounds(op) and (p := _mover(graph, op.reads[0])) is not None
    }
    if not moved:
        return graph
    dropped = set(moved.values())
    f = _fragment(graph)
    for op in graph.operations:
        if op in moved:
            inputs = [_lower(f, op, n) for n in range(len(op.inputs))]
            f.operations.append(
                replace(op, inputs=tuple(inputs), outputs=moved[op].outputs)
            )
        elif op not in dropped:
            f.operations.append(op)
    return graph.with_operations(f.operations, {**graph.constants, **f.constants})


def _lower(f: Fragment, op: Operation, n: int) -> Value | None:
    v = op.inputs[n]
    data = n == 0 or has_trait(op, JOINS)
    return f.cast(v, bfloat16) if data and v is not None else v


def _mover(graph: Graph, v: Value) -> Operation | None:
    """The operation that moves or selects the elements of `v`, of which all readers round."""
    p = graph.producer(v)
    if p is None or len(p.writes) > 1 or v in graph.outputs:
        return None
    return p if has_trait(p, MOVES_DATA | SELECTS | JOINS) else None
