"""BatchNormalization on constants goes into the convolution before it.

    (conv(x, w) + b - mean) * f + bias  =  conv(x, w * f) + (b - mean) * f + bias
    where f = scale / sqrt(var + epsilon), one number per channel

Each side rounds otherwise: within the stated tolerance; `--math exact` leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.base import events
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.ops.norm import gives_statistics, normalizes_by_batch

Array = np.ndarray[Any, Any]


def fold_batchnorm(graph: Graph) -> Graph:
    """Conv followed by BatchNormalization on constants is one Conv with other weights."""
    constants = dict(graph.constants)
    swap: dict[Operation, Operation | None] = {}
    for op in graph.operations:
        conv = _convolution(graph, op)
        if conv is None or not _at_inference(op):
            continue
        folded = _folded(conv, op, constants)
        if folded is None:
            continue
        weight, bias = (_named(conv, n, a) for n, a in (("folded", folded[0]), ("bias", folded[1])))
        constants |= {weight: folded[0], bias: folded[1]}
        swap[conv] = None
        swap[op] = replace(
            conv,
            inputs=(conv.inputs[0], weight, bias),
            outputs=op.outputs,
            name=conv.name or op.name,
        )
        events.emit("fold", node=op.label)
    if not swap:
        return graph
    operations = [swap.get(op, op) for op in graph.operations]
    return graph.with_operations([op for op in operations if op is not None], constants)


def _convolution(graph: Graph, norm: Operation) -> Operation | None:
    """The convolution that `norm`, on constants alone, takes for itself.

    norm is ONNX's BatchNormalization, its input is made by ONNX's Conv, and nothing else reads that
    or gets it from the model; weights and statistics are constants.
    """
    if norm.qualified != "BatchNormalization":
        return None
    x = norm.inputs[0]
    conv = None if x is None else graph.producer(x)
    if x is None or conv is None or conv.qualified != "Conv":
        return None
    if x in graph.outputs or len(graph.users(x)) != 1:
        return None
    operands = (*conv.inputs[1:], *norm.inputs[1:])
    known = all(v is None or v in graph.constants for v in operands)
    return conv if known else None


def _at_inference(norm: Operation) -> bool:
    """Whether the statistics are the inputs, one per channel, and none are asked for.

    `spatial` = 0 (before version 9) asks for statistics per element.
    """
    if normalizes_by_batch(norm) or gives_statistics(norm):
        return False
    return bool(norm.attributes.get("spatial", 1))


@dataclass(frozen=True)
class _Parameters:
    """Of a convolution and the normalization behind it, in float64 but for the weight."""

    weight: Array
    old: Array | float
    scale: Array
    bias: Array
    mean: Array
    var: Array


def _parameters(
    conv: Operation, norm: Operation, constants: Mapping[Value, Array]
) -> _Parameters | None:
    """None where one is missing or has another number of channels than the weight."""
    given = [None if v is None else constants[v] for v in (*conv.inputs[1:3], *norm.inputs[1:5])]
    if len(conv.inputs) < 3:
        given.insert(1, None)
    weight, old, *rest = given
    if weight is None or any(a is None or a.shape != weight.shape[:1] for a in rest):
        return None
    shift = 0.0 if old is None else old.astype(np.float64)
    return _Parameters(weight, shift, *(a.astype(np.float64) for a in rest if a is not None))


def _folded(
    conv: Operation, norm: Operation, constants: Mapping[Value, Array]
) -> tuple[Array, Array] | None:
    """The new weight and bias; None where their type cannot hold them.

    Every new number is finite: a weight that overflows makes `inf - inf` or `0 * inf` of what was
    finite. In a channel that is not all 0 the largest is normal: what others lose, if they are not,
    is below its rounding.
    """
    p = _parameters(conv, norm, constants)
    if p is None:
        return None
    with np.errstate(all="ignore"):
        factor = p.scale / np.sqrt(p.var + float(norm.attributes.get("epsilon", 1e-5)))
        shift = (p.bias + (p.old - p.mean) * factor).astype(p.weight.dtype)
        new = np.empty_like(p.weight)
        # In float64, but without a copy of the weights in it.
        along = factor.reshape(-1, *[1] * (p.weight.ndim - 1))
        np.multiply(p.weight, along, out=new, casting="same_kind")
        rows = [np.abs(w.reshape(len(w), -1)).max(1, initial=0) for w in (p.weight, new)]
    finite = np.isfinite(new).all() and np.isfinite(shift).all()
    lost = (rows[1] < np.finfo(_real(new)).tiny) & (rows[0] != 0) & (factor != 0)
    return (new, shift) if finite and not lost.any() else None


def _real(array: Array) -> Any:
    """The dtype, or for those that NumPy knows no limits of, one with the range of bfloat16."""
    return array.dtype if array.dtype.kind == "f" else np.float32


def _named(conv: Operation, what: str, array: Array) -> Value:
    weight = conv.inputs[1]
    assert weight is not None
    return constant(f"{weight.name}/{what}", array)
