"""Control flow in NumPy: If, Loop and Scan over an evaluator of subgraphs.

This defines their meaning. A subgraph sees its own inputs and constants and, by identity, the
values that it captures from enclosing graphs. State passes from one iteration to the next; scan
outputs are copied. All inputs that a Scan iterates over have the same length. With no iterations,
stacked outputs have the rank and extents that the first iteration would produce, as far as the
body's types say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.base.errors import ExecutionError
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.broadcasting import inserted


class SubgraphBodies(Protocol):
    """Runs subgraphs on their inputs, in order, and the values they capture."""

    def run(
        self, body: Graph, inputs: Sequence[Any], outer: Mapping[Value, Any]
    ) -> list[Any]:
        """The outputs."""
        ...

    def types(
        self, body: Graph, inputs: Sequence[Any], outer: Mapping[Value, Any]
    ) -> Sequence[Value]:
        """The outputs with types, as far as they follow from the shapes of the inputs."""
        ...


def is_control(op: Operation) -> bool:
    """Whether `run_control` runs it."""
    return op.qualified in _RUN


def run_control(
    op: Operation, operands: Sequence[Any], bodies: SubgraphBodies
) -> list[Any]:
    """The results. operands: one per entry of `op.inputs`, then the captured values in order."""
    own = set(op.inputs)
    captured = [v for v in op.reads if v not in own]
    count = len(op.inputs)
    values = {v: a for v, a in zip(op.inputs, operands, strict=False) if v is not None}
    values |= dict(zip(captured, operands[count:], strict=True))
    return _RUN[op.qualified](op, operands[:count], values, bodies)


def _if(
    op: Operation,
    inputs: Sequence[Any],
    values: Mapping[Value, Any],
    bodies: SubgraphBodies,
) -> list[Any]:
    if _scalar(inputs[0]):
        branch = "then_branch"
    else:
        branch = "else_branch"
    return bodies.run(op.attributes[branch], (), values)


def _scalar(x: Any) -> Any:
    """The only element of an array."""
    return np.asarray(x).reshape(-1)[0]


def _loop(
    op: Operation,
    inputs: Sequence[Any],
    values: Mapping[Value, Any],
    bodies: SubgraphBodies,
) -> list[Any]:
    body: Graph = op.attributes["body"]
    if inputs[0] is None:
        trips = None
    else:
        trips = int(_scalar(inputs[0]))
    going = inputs[1] is None or bool(_scalar(inputs[1]))
    state = list(inputs[2:])
    scans: list[list[Any]] = [[] for _ in body.outputs[1 + len(state) :]]
    n = 0
    while going and (trips is None or n < trips):
        number = np.array(n, np.int64)
        results = bodies.run(body, [number, np.array(True), *state], values)
        going = bool(_scalar(results[0]))
        for scan, item in zip(scans, results[1 + len(state) :], strict=True):
            scan.append(item)
        state = results[1 : 1 + len(state)]
        n += 1
    if not n:
        first = [np.array(0, np.int64), np.array(True), *state]
        outputs = _types(body, first, values, bodies)[1 + len(state) :]
        return [*state, *(_nothing(v, 0) for v in outputs)]
    return [*state, *(_stacked(s, 0) for s in scans)]


def _scan(
    op: Operation,
    inputs: Sequence[Any],
    values: Mapping[Value, Any],
    bodies: SubgraphBodies,
) -> list[Any]:
    if op.version < 9:
        return _scan_batches(op, inputs, values, bodies)
    return _scan_once(op, inputs, values, bodies)


def _scan_batches(
    op: Operation,
    inputs: Sequence[Any],
    values: Mapping[Value, Any],
    bodies: SubgraphBodies,
) -> list[Any]:
    """Version 8: everything has a leading batch axis, and input 0 holds lengths per batch."""
    if inputs[0] is not None:
        raise ExecutionError(
            "Scan 8 with sequence lengths is not implemented", where=op.label
        )
    batches = [
        _scan_once(op, [x[b] for x in inputs[1:]], values, bodies)
        for b in range(len(inputs[1]))
    ]
    return [np.stack(parts) for parts in zip(*batches, strict=True)]


def _scan_once(
    op: Operation,
    inputs: Sequence[Any],
    values: Mapping[Value, Any],
    bodies: SubgraphBodies,
) -> list[Any]:
    body: Graph = op.attributes["body"]
    count = int(op.attributes["num_scan_inputs"])
    state = list(inputs[: len(inputs) - count])
    sequences = inputs[len(inputs) - count :]
    kept = len(state)
    produced = len(body.outputs) - kept
    directions = "scan_input_directions" if op.version >= 9 else "directions"
    backward = _per_scan(op, directions, count)
    out_backward = _per_scan(op, "scan_output_directions", produced)
    axes = _per_scan(op, "scan_input_axes", count)
    out_axes = _per_scan(op, "scan_output_axes", produced)
    pairs = zip(sequences, axes, strict=True)
    length = same_length(op, [s.shape[a] for s, a in pairs])
    scans: list[list[Any]] = [[] for _ in range(produced)]
    if not length:
        pairs = zip(sequences, axes, strict=True)
        first = [np.zeros_like(s, shape=np.delete(s.shape, a)) for s, a in pairs]
        outputs = _types(body, [*state, *first], values, bodies)[kept:]
        empty = zip(outputs, out_axes, strict=True)
        return [*state, *(_nothing(v, axis) for v, axis in empty)]
    for n in range(length):
        items = [
            np.asarray(np.take(s, length - 1 - n if back else n, axis))
            for s, axis, back in zip(sequences, axes, backward, strict=True)
        ]
        results = bodies.run(body, [*state, *items], values)
        state = results[:kept]
        for scan, item in zip(scans, results[kept:], strict=True):
            scan.append(item)
    found = list(state)
    for scan, axis, back in zip(scans, out_axes, out_backward, strict=True):
        found.append(_stacked(scan[::-1] if back else scan, axis))
    return found


def same_length(op: Operation, lengths: Sequence[int]) -> int:
    """The length of a Scan's inputs. Raises ExecutionError if they differ, as ONNX requires."""
    if len(set(lengths)) > 1:
        shown = ", ".join(map(str, lengths))
        raise ExecutionError(
            f"the inputs that Scan iterates over are {shown} long",
            where=f"node {op.label!r}",
            hint="Give it sequences of one length",
        )
    return lengths[0] if lengths else 0


def _per_scan(
    op: Operation,
    name: str,
    count: int,
) -> list[int]:
    return list(op.attr(name) or [0] * count)


def _types(
    body: Graph,
    inputs: Sequence[Any],
    values: Mapping[Value, Any],
    bodies: SubgraphBodies,
) -> list[Value]:
    """The outputs of a body that does not run: as declared if nothing more is known."""
    if all(v.static for v in body.outputs):
        return list(body.outputs)
    found = zip(
        body.outputs,
        bodies.types(body, inputs, values),
        strict=True,
    )
    return [said if inferred.shape is None else inferred for said, inferred in found]


def _stacked(items: Sequence[Any], axis: int) -> Any:
    """The items stacked along a new axis."""
    return np.stack([np.asarray(i) for i in items], axis)


def _nothing(value: Value, axis: int) -> Any:
    """An empty stack along a new axis; unknown extents become 0."""
    inner = [d if isinstance(d, int) else 0 for d in value.shape or ()]
    axis = axis % (len(inner) + 1)  # counted in the result
    dtype = np.float32 if value.dtype is None else value.dtype.numpy
    return np.zeros(inserted(inner, axis, 0), dtype)


def _bounded_loop(
    op: Operation,
    inputs: Sequence[Any],
    values: Mapping[Value, Any],
    bodies: SubgraphBodies,
) -> list[Any]:
    """The Loop of `graph/ops/bounded_control.py`: rows past the count are 0."""
    body: Graph = op.attributes["body"]
    count = int(op.attributes["states"])
    bound = int(op.attributes["bound"])
    trips = int(_scalar(inputs[0]))
    going = bool(_scalar(inputs[1]))
    state = list(inputs[2 : 2 + count])
    taken = inputs[2 + count :]
    scans = [
        np.zeros((bound, *v.extents), None if v.dtype is None else v.dtype.numpy)
        for v in body.outputs[1 + count :]
    ]
    n = 0
    while going and n < trips:
        if scans and n == bound:
            raise ExecutionError(
                f"more than {bound} iterations", where=f"node {op.label!r}"
            )
        number = np.array(n, np.int64)
        first, *results = bodies.run(body, [number, *state, *taken], {})
        for scan, item in zip(scans, results[count:], strict=True):
            scan[n] = item
        state = results[:count]
        going = bool(_scalar(first))
        n += 1
    return [np.array(n, np.int64), *state, *scans]


def _closed_if(
    op: Operation,
    inputs: Sequence[Any],
    values: Mapping[Value, Any],
    bodies: SubgraphBodies,
) -> list[Any]:
    """The If of `graph/ops/bounded_control.py`: branches take their operands as inputs."""
    name = "then_branch" if _scalar(inputs[0]) else "else_branch"
    return bodies.run(op.attributes[name], inputs[1:], {})


_RUN = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "tilewright::If": _closed_if,
    "tilewright::Loop": _bounded_loop,
}
CONTROL = frozenset(_RUN)  # the qualified names of the operators that have subgraphs
