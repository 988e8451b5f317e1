"""If on a condition that is computed at run time.

Small branches both run, and one result is selected; errors in the branch that is not taken are
suppressed (`Builder.guard`). Otherwise only the taken branch runs, as a closed graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewright.graph.bounded.bodies import Body
from tilewright.graph.bounded.builder import BoundedBuilder
from tilewright.graph.bounded.context import Results
from tilewright.graph.bounded.extents import BoundedExtent, Dim, least, most, storage
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.open_extents import DOMAIN
from tilewright.graph.specialize import known_branch

SELECTED = 1 << 12  # elements that both branches may touch if both run

if TYPE_CHECKING:
    from tilewright.graph.bounded.bound import OperatorWalk


def branch(
    walk: OperatorWalk,
    op: Operation,
    env: Mapping[Value, Value],
) -> Results | None:
    """The results of an If; None if they cannot be bounded."""
    if op.qualified != "If" or op.inputs[0] is None or not op.inputs[0].static:
        return None
    taken = known_branch(op, {}, walk.builder.typer.known)
    if taken is not None:
        return list(_inlined(walk, taken, env))
    b, outer = walk.builder, walk.builder.guard
    if b.dims(op.inputs[0]) not in ((), (1,)):
        return None
    bodies = [_body(walk, op, f"{name}_branch", env) for name in ("then", "else")]
    if sum(work for _, _, work in bodies) > SELECTED:
        found = _closed(walk, op, [(inner, outputs) for inner, outputs, _ in bodies])
        if found is not None:
            return found
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


def _body(
    walk: OperatorWalk,
    op: Operation,
    name: str,
    env: Mapping[Value, Value],
) -> tuple[Body, list[Value], int]:
    """A branch turned into a body, with its outputs and an estimate of its work."""
    inner = Body(walk.inner(f"{op.label}/{name}"), [], dict(env))
    inner.walk.builder.guard = None
    outputs = inner.run(op.attributes[name])
    return inner, outputs, sum(map(_work, inner.walk.builder.typer.operations))


def _work(op: Operation) -> int:
    """Estimate how many elements an operator touches."""
    if op.subgraphs or not all(v.static for v in (*op.reads, *op.writes)):
        return SELECTED + 1
    return sum(math.prod(v.extents) for v in (*op.reads, *op.writes))


def _closed(
    walk: OperatorWalk,
    op: Operation,
    branches: Sequence[tuple[Body, list[Value]]],
) -> Results | None:
    """The results of the taken branch; the other one does not run."""
    b = walk.builder
    assert op.inputs[0] is not None
    condition = b.op("Reshape", op.inputs[0], b.constant(np.empty(0)))
    specs = []
    (first, ones), (second, others) = branches
    for one, other in zip(ones, others, strict=True):
        if not (one.static and other.static) or one.dtype is not other.dtype:
            return None
        dims = first.walk.builder.dims(one), second.walk.builder.dims(other)
        if len(dims[0]) != len(dims[1]):
            return None
        specs.append([_either(*pair) for pair in zip(*dims, strict=True)])
    given = []
    for inner, outputs in branches:
        made = inner.walk.builder
        ends, counts = [], []
        for v, spec in zip(outputs, specs, strict=True):
            pairs = zip(made.dims(v), spec, strict=True)
            counts += [made.scalar(d) for d, (_, is_open) in pairs if is_open]
            ends.append(grown(made, v, [size for size, _ in spec]))
        given.append((inner, [*ends, *counts]))
    taken = list(dict.fromkeys(v for inner, ends in given for v in inner.taken(ends)))
    graphs = [
        inner.closed(inner.walk.builder.prefix, ends, taken) for inner, ends in given
    ]
    if None in graphs:
        return None
    then, other_branch = graphs
    found = b.ops(
        "If",
        condition,
        *taken,
        count=len(given[0][1]),
        domain=DOMAIN,
        label=op.label,
        then_branch=then,
        else_branch=other_branch,
    )
    counts = list(found[len(specs) :])
    for v, spec in zip(found, specs, strict=False):
        b.sized(
            v, [b.extent(counts.pop(0), n) if is_open else n for n, is_open in spec]
        )
    return list(found[: len(specs)])


def _either(one: Dim, other: Dim) -> tuple[int, bool]:
    """The bound of an extent that is one of two, and whether it is decided at run time."""
    largest = max(most(one), most(other), 0)
    return largest, isinstance(one, BoundedExtent) or one != other


def _inlined(
    walk: OperatorWalk,
    body: Graph,
    env: Mapping[Value, Value],
) -> list[Value]:
    """Add a branch's operators to the enclosing graph; returns the branch's outputs."""
    inner = dict(env)
    for v, array in body.constants.items():
        walk.builder.typer.known[v] = array
        inner[v] = v
    walk.run(body.operations, inner)
    return [inner.get(v, v) for v in body.outputs]


def _fit(
    b: BoundedBuilder,
    one: Value,
    other: Value,
) -> bool:
    """Whether both are tensors of the same type and rank."""
    if not (one.static and other.static) or one.dtype is not other.dtype:
        return False
    return len(b.dims(one)) == len(b.dims(other))


def _selected(
    walk: OperatorWalk,
    condition: Value,
    one: Value,
    other: Value,
) -> Value:
    """One of two tensors, in memory large enough for both."""
    b = walk.builder
    pairs = zip(b.dims(one), b.dims(other), strict=True)
    dims = tuple(_number(b, condition, *pair) for pair in pairs)
    values = [grown(b, v, dims) for v in (one, other)]
    found = b.sized(b.op("Where", condition, *values), dims)
    held = [walk.context.contents.of(v) for v in (one, other)]
    if held[0] is not None and held[1] is not None and held[0].shape == held[1].shape:
        both = zip(held[0].reshape(-1), held[1].reshape(-1), strict=True)
        numbers = [_number(b, condition, *pair) for pair in both]
        walk.context.contents.put(found, numbers, held[0].shape)
    return found


def _number(
    b: BoundedBuilder,
    condition: Value,
    one: Dim,
    other: Dim,
) -> Dim:
    """One of two numbers."""
    if one is other or one == other:
        return one
    count = b.op("Where", condition, b.scalar(one), b.scalar(other))
    return BoundedExtent(
        count,
        min(least(one), least(other)),
        max(most(one), most(other)),
    )


def grown(
    b: BoundedBuilder,
    v: Value,
    dims: Sequence[Dim],
) -> Value:
    """The tensor copied into memory of larger extents."""
    short = [want - have for want, have in zip(storage(dims), v.extents, strict=True)]
    if not any(short):
        return v
    pads = b.constant([0] * len(short) + short)
    assert v.dtype is not None
    return b.op(
        "Pad",
        v,
        pads,
        b.constant(0, v.dtype),
    )
