"""Concatenation of dequantized bytes that are requantized, done on the bytes.

Q(Concat(DQ(a), DQ(b), ...)) = Concat(a, b, ...) if all have the same quantization, as the round
trip changes no byte.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.base.dtypes import int8, uint8
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import onnx
from tilewright.graph.rules.quantization import (
    QuantizedTensor,
    quantized_by,
    quantizer,
    same_quantization,
)
from tilewright.graph.rules.rule import Rule


class ConcatRegion:
    """A quantizer after a Concat whose operands are all bytes with the same quantization."""

    names = onnx.QuantizeLinear.names

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """The quantizer and the concatenation before it."""
        joined = None if op.inputs[0] is None else graph.producer(op.inputs[0])
        if joined is not None and onnx.Concat.covers(joined):
            if _operands(graph, op, joined) is not None:
                yield Match(graph, op, {0: joined})

    def __str__(self) -> str:
        return "QuantizeLinear(Concat(DequantizeLinear(x, scale, zero?), ...), scale, zero?)"


def _operands(graph: Graph, op: Operation, joined: Operation) -> list[Value] | None:
    """The bytes; None if one has another quantization than the result, or none."""
    q = quantizer(op)
    if q is None:
        return None
    found: list[QuantizedTensor] = []
    for v in joined.inputs:
        x = quantized_by(graph, v, (uint8, int8))
        if x is None or x.axis is not None or not same_quantization(graph, x, q):
            return None
        found.append(x)
    return [x.whole for x in found]


def _concat(m: Match, f: Fragment) -> Value | None:
    """Concat(x, ...) of the bytes"""
    joined = m.bound[0]
    operands = _operands(m.graph, m.root, joined)
    assert operands is not None
    return f.apply(joined, operands, joined.attributes)


def _samples(rng: np.random.Generator) -> Graph:
    """Two or three tensors of bytes of one quantization along any axis."""
    f = Fragment("concat", {})
    kind = (uint8, int8)[int(rng.integers(2))]
    scale = f.constant(np.float32(rng.uniform(0.1, 1)))
    zero = f.constant(9, kind)
    shape = (2, 3, 4)
    inputs = [Value(f"x{n}", kind, shape) for n in range(int(rng.integers(2, 4)))]
    real = [f.op("DequantizeLinear", x, scale, zero) for x in inputs]
    joined = f.op("Concat", *real, axis=int(rng.integers(3)))
    y = f.op("QuantizeLinear", joined, scale, zero)
    return Graph("sample", tuple(inputs), (y,), tuple(f.operations), f.constants)


CONCAT_OF_BYTES = Rule("concat-of-bytes", ConcatRegion(), _concat, samples=_samples)
