"""Decomposed layer normalisation as LayerNormalization.

`(x - mean) / sqrt(var + eps) * scale + bias` over the last axis, in eight or nine operators, is one
kernel as one operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base import events
from tilewright.graph.nodes import Graph, Operation, Value, constant


@dataclass(frozen=True, eq=False)
class _Norm:
    """What was found: the input, epsilon, and the operation that ends the idiom so far."""

    x: Value
    epsilon: float
    last: Operation


def recognise_layer_norm(graph: Graph) -> Graph:
    """Decomposed layer normalisation over the last axis as LayerNormalization."""
    constants = dict(graph.constants)
    swap: dict[Operation, Operation] = {}
    for op in graph.operations:
        norm = _normalised(graph, op)
        if norm is None:
            continue
        scale, last = _affine(graph, norm.last, "Mul", norm.x)
        bias, last = _affine(graph, last, "Add", norm.x)
        size = norm.x.extents[-1]
        if scale is None:
            ones = np.ones(size, norm.x.dtype.numpy if norm.x.dtype else np.float32)
            scale = constant(f"{op.label}/scale", ones)
            constants[scale] = ones
        inputs = (norm.x, scale) if bias is None else (norm.x, scale, bias)
        attributes = {"axis": -1, "epsilon": norm.epsilon}
        swap[last] = Operation(
            "LayerNormalization", inputs, (last.outputs[0],), attributes, "", 17, last.name
        )
        events.emit("idiom", name="LayerNormalization", node=last.label)
    if not swap:
        return graph
    return graph.with_operations([swap.get(op, op) for op in graph.operations], constants)


def _normalised(graph: Graph, op: Operation) -> _Norm | None:
    """`op` as the division of a centered input by its standard deviation.

    op = (x - m) / sqrt(mean((x - m) ** 2) + eps), both means over the last axis, kept, and eps one
    number. Nothing on the way has more axes than x (eps or an exponent of shape [1, 1, 1] may add
    some): the result has its shape.
    """
    if op.qualified != "Div":
        return None
    centred, deviation = (_made_by(graph, v) for v in op.inputs)
    if centred is None or centred.qualified != "Sub" or deviation is None:
        return None
    x, mean = centred.inputs
    if x is None or not x.static or deviation.qualified != "Sqrt":
        return None
    if any(v is None or v.shape != x.shape or v.dtype is not x.dtype for v in op.outputs):
        return None
    shifted = _made_by(graph, deviation.inputs[0])
    if shifted is None or shifted.qualified != "Add":
        return None
    variance, epsilon = _with_scalar(graph, shifted)
    square = _mean_of(graph, variance)
    if epsilon is None or _mean_of(graph, mean) is not x or square is None:
        return None
    squared = _made_by(graph, square)
    if squared is None or not _is_square(graph, squared, x, mean):
        return None
    return _Norm(x, epsilon, op)


def _is_square(graph: Graph, op: Operation, x: Value, mean: Value | None) -> bool:
    """Whether `op` squares `x - mean`."""
    base = _made_by(graph, op.inputs[0])
    if base is None or base.qualified != "Sub" or base.inputs != (x, mean):
        return False
    if op.qualified == "Mul":
        return op.inputs[0] is op.inputs[1]
    return op.qualified == "Pow" and _scalar(graph, op.inputs[1]) == 2.0


def _mean_of(graph: Graph, value: Value | None) -> Value | None:
    """The tensor whose mean over the last axis, which is kept, `value` is."""
    op = _made_by(graph, value)
    if op is None or op.qualified != "ReduceMean" or op.attributes.get("keepdims", 1) != 1:
        return None
    source = op.inputs[0]
    axes: Any = op.attributes.get("axes")
    if axes is None and len(op.inputs) > 1 and op.inputs[1] is not None:
        axes = graph.constants.get(op.inputs[1])
    if source is None or source.shape is None or axes is None:
        return None
    rank = len(source.shape)
    return source if [int(a) % rank for a in np.ravel(axes)] == [rank - 1] else None


def _affine(graph: Graph, op: Operation, kind: str, x: Value) -> tuple[Value | None, Operation]:
    """A vector that the only reader of `op` multiplies by (or adds), and that reader.

    The vector is a constant of one number per element of the last axis; what it is multiplied with
    is read nowhere else and is no result of the model.
    """
    out = op.outputs[0]
    assert out is not None
    users = graph.users(out)
    if len(users) != 1 or out in graph.outputs or users[0].qualified != kind:
        return None, op
    other = next((v for v in users[0].inputs if v is not out), None)
    if other not in graph.constants or other is None or other.shape != x.extents[-1:]:
        return None, op
    return other, users[0]


def _with_scalar(graph: Graph, op: Operation) -> tuple[Value | None, float | None]:
    """The operands of a sum of a tensor and a constant scalar."""
    a, b = op.inputs
    scalar = _scalar(graph, b)
    return (a, scalar) if scalar is not None else (b, _scalar(graph, a))


def _scalar(graph: Graph, value: Value | None) -> float | None:
    array = None if value is None else graph.constants.get(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def _made_by(graph: Graph, value: Value | None) -> Operation | None:
    return None if value is None else graph.producer(value)
