"""If on a condition that a run decides: both branches, of which one is selected.

What would fail in the branch that is not taken does not (`Builder.guard`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tilewright.graph.bounded.builder import Builder
from tilewright.graph.bounded.context import Results
from tilewright.graph.bounded.extents import Dim, Dims, Extent, least, most, storage
from tilewright.graph.infer import known_branch
from tilewright.graph.nodes import Graph, Operation, Value

if TYPE_CHECKING:
    from tilewright.graph.bounded.bound import Walk


def branch(
    walk: Walk,
    op: Operation,
    env: Mapping[Value, Value],
) -> Results | None:
    """The results of an If; None where they cannot be bounded."""
    if op.qualified != "If" or op.inputs[0] is None or not op.inputs[0].static:
        return None
    taken = known_branch(op, {}, walk.builder.typer.known)
    if taken is not None:
        return list(_inlined(walk, taken, env))
    b, outer = walk.builder, walk.builder.guard
    if b.dims(op.inputs[0]) not in ((), (1,)):
        return None
    condition = b.op("Reshape", op.inputs[0], b.constant(np.empty(0)))
    results: list[list[Value]] = []
    mark = len(b.typer.operations)
    for name, here in (("then", condition), ("else", b.op("Not", condition))):
        b.guard = here if outer is None else b.op("And", outer, here)
        try:
            body = op.attributes[f"{name}_branch"]
            results.append(_inlined(walk, body, env))
        finally:
            b.guard = outer
    added = b.typer.operations[mark:]
    if any(o.subgraphs or not all(v.static for v in o.writes) for o in added):
        return None
    pairs = list(zip(*results, strict=True))
    if not all(_fit(b, *pair) for pair in pairs):
        return None
    return [_selected(walk, condition, *pair) for pair in pairs]


def _inlined(
    walk: Walk,
    body: Graph,
    env: Mapping[Value, Value],
) -> list[Value]:
    """The outputs of a branch, whose operators are added to the graph around it."""
    inner = dict(env)
    for v, array in body.constants.items():
        walk.builder.typer.known[v] = array
        inner[v] = v
    walk.run(body.operations, inner)
    return [inner.get(v, v) for v in body.outputs]


def _fit(
    b: Builder,
    one: Value,
    other: Value,
) -> bool:
    """Whether both are tensors of one type and rank."""
    if not (one.static and other.static) or one.dtype is not other.dtype:
        return False
    return len(b.dims(one)) == len(b.dims(other))


def _selected(
    walk: Walk,
    condition: Value,
    one: Value,
    other: Value,
) -> Value:
    """One of two tensors, in memory that is large enough for both."""
    b = walk.builder
    pairs = zip(b.dims(one), b.dims(other), strict=True)
    dims = tuple(_number(b, condition, *pair) for pair in pairs)
    values = [_grown(b, v, dims) for v in (one, other)]
    found = b.sized(b.op("Where", condition, *values), dims)
    held = [walk.context.contents.of(v) for v in (one, other)]
    if held[0] is not None and held[1] is not None and held[0].shape == held[1].shape:
        both = zip(held[0].reshape(-1), held[1].reshape(-1), strict=True)
        numbers = [_number(b, condition, *pair) for pair in both]
        walk.context.contents.put(found, numbers, held[0].shape)
    return found


def _number(
    b: Builder,
    condition: Value,
    one: Dim,
    other: Dim,
) -> Dim:
    """One of two numbers."""
    if one is other or one == other:
        return one
    count = b.op("Where", condition, b.scalar(one), b.scalar(other))
    return Extent(count, min(least(one), least(other)), max(most(one), most(other)))


def _grown(
    b: Builder,
    v: Value,
    dims: Dims,
) -> Value:
    """The tensor in the memory of larger extents."""
    short = [want - have for want, have in zip(storage(dims), v.extents, strict=True)]
    if not any(short):
        return v
    pads = b.constant([0] * len(short) + short)
    assert v.dtype is not None
    return b.op("Pad", v, pads, b.constant(0, v.dtype))
