"""Products of dequantised bytes, as quantisers write them, as products of the bytes themselves.

    DequantizeLinear(a, s, p) @ DequantizeLinear(b, t, q)  =  s * t * MatMulInteger(a, b, p, q)

and the same of convolutions: exact in int32 where the left side rounds at each step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.base import events
from tilewright.base.dtypes import float32, int8, int64, uint8
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.fragment import Fragment

MOST_TERMS = (2**31 - 1) // (255 * 255)  # of a sum that int32 holds
FLOAT = 1  # ONNX's number of the type


@dataclass(frozen=True, slots=True)
class _Real:
    """A tensor of bytes with its scale and zero point; axis: of a scale that is a vector."""

    bytes: Value
    scale: Value
    zero: Value | None
    axis: int | None


def integer_products(graph: Graph) -> Graph:
    """MatMul and Conv of two dequantised tensors as MatMulInteger and ConvInteger, scaled."""
    constants = dict(graph.constants)
    operations: list[Operation] = []
    for op in graph.operations:
        f = Fragment(op.label, constants)
        result = _product(graph, op, f) if op.op_type in ("MatMul", "Conv") else None
        if result is None:
            operations.append(op)
            continue
        events.emit("idiom", name=f"{op.op_type}Integer", node=op.label)
        constants |= f.constants
        last = Operation("Identity", (result,), (op.outputs[0],), {}, "", 21, f"{op.label}/out")
        operations += [*f.operations, last]
    return graph.with_operations(operations, constants)


def _product(graph: Graph, op: Operation, f: Fragment) -> Value | None:
    left, right = (_real(graph, v) for v in op.inputs[:2])
    if left is None or right is None or op.outputs[0] is None or left.axis is not None:
        return None
    a, b = left.bytes.extents, right.bytes.extents
    if op.op_type == "MatMul":
        if min(len(a), len(b)) < 2 or a[-1] > MOST_TERMS or right.axis not in (None, len(b) - 1):
            return None
        found = f.op("MatMulInteger", left.bytes, right.bytes, left.zero, right.zero)
        return _scaled(f, found, left.scale, right.scale)
    if math.prod(b[1:]) > MOST_TERMS or right.axis not in (None, 0):
        return None
    operands = left.bytes, right.bytes, left.zero, right.zero
    found = f.op("ConvInteger", *operands, **op.attributes)
    real = _scaled(f, found, left.scale, _channels(f, right.scale, len(b)))
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    return real if bias is None else f.op("Add", real, _channels(f, bias, len(b)))


def _scaled(f: Fragment, total: Value, left: Value, right: Value) -> Value:
    return f.op("Mul", f.op("Cast", total, to=FLOAT), f.op("Mul", left, right))


def _channels(f: Fragment, x: Value, rank: int) -> Value:
    """A parameter per output channel, as it broadcasts against feature maps."""
    if not x.extents:
        return x
    return f.op("Reshape", x, f.constant((-1, *[1] * (rank - 2)), int64))


def _real(graph: Graph, value: Value | None) -> _Real | None:
    """What is dequantised to `value`: bytes with one scale, or one along an axis."""
    op = None if value is None else graph.producer(value)
    if op is None or op.op_type != "DequantizeLinear" or op.attributes.get("block_size"):
        return None
    x, scale, zero = (*op.inputs, None)[:3]
    if x is None or scale is None or not (x.static and scale.static):
        return None
    if x.dtype not in (uint8, int8) or scale.dtype is not float32 or len(scale.extents) > 1:
        return None
    if math.prod(scale.extents) == 1:
        return _Real(x, scale, zero, None)
    return _Real(x, scale, zero, op.attributes.get("axis", 1) % len(x.extents))
