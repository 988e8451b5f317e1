"""Derivatives of a Graph as additional results: of its loss in reverse, or along a direction."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.graph.gradient import backward, depending, needed_for, refuse_loop
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.derivative import filled
from tilewright.graph.ops.errors import place
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.specialize import specialize

Array = np.ndarray[Any, Any]
_STATISTICS = {"BatchNormalization": (3, 4)}


def without_loops(graph: Graph, fallback: FallbackProvider | None) -> Graph:
    """Unroll loops of known length and replace each If of known condition by its branch."""
    if not any(op.subgraphs for op in graph.operations):
        return graph
    return specialize(graph, fallback=fallback, decompose=False)


def loss_of(graph: Graph, name: str | None) -> Value:
    """The output to differentiate: the one of that name, or the only one.

    Raises InputError if it is not a single float, UnsupportedError if the shape of a loop's result
    is unknown.
    """
    outputs = {v.name: v for v in graph.outputs}
    if name is None and len(outputs) != 1:
        raise InputError(
            f"the model has the outputs {listing(sorted(outputs))}",
            hint="choose the loss: loss='name'",
        )
    loss = graph.outputs[0] if name is None else outputs.get(name)
    if loss is None:
        raise InputError(
            f"the model has no output {name!r}",
            hint=f"its outputs: {listing(sorted(outputs))}",
        )
    if not loss.static:
        for op in needed_for(graph.operations, [loss]):
            if op.qualified in ("Loop", "Scan"):
                refuse_loop(op)
        raise InputError(
            f"the shape of the loss is not known: {loss}",
            hint="give the values of symbolic dimensions: dims={...}",
        )
    if math.prod(loss.extents) != 1 or loss.dtype is None or not loss.dtype.is_float:
        raise InputError(
            f"the loss {loss} is not a scalar of floats",
            hint="let the model end with a sum or a mean (ReduceSum, ReduceMean)",
        )
    return loss


def inputs_of(graph: Graph, names: Sequence[str] | None) -> list[Value]:
    """The inputs to differentiate with respect to: the named ones, or all floats.

    Raises InputError for a name that the graph does not have, and for an input that is not a float.
    """
    by_name = {v.name: v for v in graph.inputs}
    if names is None:
        return [v for v in graph.inputs if v.dtype is not None and v.dtype.is_float]
    found = []
    for name in names:
        v = by_name.get(name)
        if v is None:
            raise InputError(
                f"the model has no input {name!r} to differentiate by",
                hint=f"it has {listing(sorted(by_name))}",
            )
        if v.dtype is not None and not v.dtype.is_float:
            raise InputError(
                f"{v} has no derivatives: its elements are not floats",
                hint="leave it out",
            )
        found.append(v)
    return found


def free_constants(
    graph: Graph,
    names: Collection[str],
) -> tuple[Graph, dict[str, Array]]:
    """The graph with the named constants turned into inputs, and their values.

    Raises InputError for a name that no constant has.
    """
    by_name = {v.name: v for v in graph.constants}
    unknown = [n for n in names if n not in by_name]
    if unknown:
        raise InputError(
            f"the model has no constant {unknown[0]!r}",
            hint=f"it has {listing(sorted(by_name))}",
        )
    freed = [by_name[n] for n in names]
    kept = {v: a for v, a in graph.constants.items() if v not in freed}
    arrays = {v.name: graph.constants[v] for v in freed}
    found = replace(graph, inputs=(*graph.inputs, *freed), constants=kept)
    return found, arrays


def trainable(graph: Graph) -> list[str]:
    """The names of the constants that are weights: float tensors that are not statistics."""
    found = dict.fromkeys(
        v
        for v, a in graph.constants.items()
        if v.dtype is not None and v.dtype.is_float and a.ndim > 0
    )
    for op in graph.operations:
        for n in _STATISTICS.get(op.qualified, ()):
            found.pop(op.inputs[n], None)  # type: ignore[arg-type]
    return [v.name for v in found]


def differentiate(
    graph: Graph,
    loss: Value,
    wanted: Sequence[Value],
    f: Fragment,
) -> list[Value]:
    """d loss / dx for each of the wanted inputs, added to `f`.

    Raises InputError for an input that the loss does not depend on, and like
    `graph.gradient.gradients`.
    """
    _check_reached(graph, loss, wanted)
    flows = backward(f, graph.operations, {loss: filled(f, loss, 1)}, wanted)
    return [flows[x] for x in wanted]


def along(
    graph: Graph,
    tangents: Mapping[Value, Value],
    f: Fragment,
) -> dict[Value, Value]:
    """The derivative of the float outputs along a direction, for those that depend on it.

    tangents: the direction, by input. Uses reverse mode twice: the inputs' gradients are linear in
    the outputs' gradients, so differentiating their product with the direction with respect to the
    latter yields the answer. Raises like `graph.gradient.gradients`.
    """
    reached = depending(graph.operations, tangents)
    ends = dict.fromkeys(y for y in graph.outputs if y in reached)
    seeds = {y: filled(f, y, 0) for y in ends}
    flows = backward(f, graph.operations, seeds, list(tangents))
    into: dict[Value, Value] = {}
    for x, t in tangents.items():
        flow = flows.get(x)
        if flow is None:
            continue
        into[flow] = f.op("Add", into[flow], t) if flow in into else t
    operations = (*graph.operations, *f.operations)
    back = backward(f, operations, into, list(seeds.values()))
    return {y: back[seed] for y, seed in seeds.items() if seed in back}


def extended(graph: Graph, f: Fragment, outputs: Sequence[Value]) -> Graph:
    """The graph followed by a fragment's operations, with other outputs."""
    constants: Mapping[Value, Array] = {**graph.constants, **f.constants}
    operations = (*graph.operations, *f.operations)
    return graph.with_operations(needed_for(operations, outputs), constants, outputs)


def as_ready(
    operations: Sequence[Operation],
    others: Sequence[Operation],
) -> list[Operation]:
    """Both sequences merged: each of `others` as soon as its operands exist.

    This keeps values that only `others` read from living longer than necessary.
    """
    made = {v for op in (*operations, *others) for v in op.writes}
    found: list[Operation] = []
    waiting = list(others)
    for op in (None, *operations):
        if op is not None:
            found.append(op)
            made.difference_update(op.writes)
        while ready := [o for o in waiting if made.isdisjoint(o.reads)]:
            found += ready
            waiting = [o for o in waiting if o not in ready]
            for o in ready:
                made.difference_update(o.writes)
    return found


def _check_reached(graph: Graph, loss: Value, wanted: Sequence[Value]) -> None:
    """Raise InputError for the first input that does not reach the loss through floats."""
    for x in wanted:
        if loss in depending(graph.operations, [x]):
            continue
        found = depending(graph.operations, [x])
        ends = [
            op
            for op in graph.operations
            if any(v in found for v in op.reads) and found.isdisjoint(op.writes)
        ]
        why = (
            f"only through integers, at {place(ends[0])}" if ends else "by no operator"
        )
        raise InputError(
            f"{x.name!r} does not reach the loss {loss.name!r}: {why}",
            hint="do not differentiate with respect to it",
        )
