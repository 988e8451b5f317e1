"""Writing a quantized model in ONNX's QDQ form: pairs of QuantizeLinear and DequantizeLinear.

    Conv(x, w, b)  becomes  Conv(DQ(Q(x)), DQ(whole weights), DQ(whole bias))

Weights are int8 with a scale per channel, and biases are int32 in units of the data's scale times
the weights' scale. The rest of the graph is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.quantize.affine import AffineQuantization, Weights
from tilewright.graph.quantize.layers import Layer
from tilewright.graph.quantize.migrate import Slot
from tilewright.graph.quantize.places import QuantizedPlaces
from tilewright.graph.renaming import names_in

Array = NDArray[Any]
VERSION = 13  # version of the operators: the first with scales along an axis
_WHOLE = np.iinfo(np.int32)


@dataclass(eq=False)
class QdqWriter:
    """Adds pairs to the operations of a new graph; each tensor is quantized once."""

    graph: Graph
    taken: set[str] = field(init=False)
    operations: list[Operation] = field(default_factory=list)
    constants: dict[Value, Array] = field(default_factory=dict)
    _real: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taken = names_in(self.graph)
        self.constants = dict(self.graph.constants)

    def name(
        self,
        stem: str,
    ) -> str:
        """The stem, with a number if it is already in use."""
        return fresh(self.taken, stem, ".")

    def constant(
        self,
        stem: str,
        array: Any,
    ) -> Value:
        """Add a constant."""
        a = np.asarray(array)
        v = constant(self.name(stem), a)
        self.constants[v] = a
        return v

    def bias(
        self,
        op: Operation,
        n: int,
        array: Array,
    ) -> Value:
        """Add a corrected bias: operand n of an operation, which may have had none."""
        old = op.inputs[n] if n < len(op.inputs) else None
        stem = f"{op.label}/bias" if old is None else old.name
        return self.constant(f"{stem}/corrected", array)

    def op(
        self, op_type: str, stem: str, like: Value, *inputs: Value, **more: Any
    ) -> Value:
        """Add an operation with one result of the type of `like`."""
        result = replace(like, name=self.name(stem))
        self.operations.append(
            Operation(op_type, inputs, (result,), more, "", VERSION, result.name)
        )
        return result

    def rounded(
        self,
        v: Value,
        how: AffineQuantization,
    ) -> Value:
        """A computed tensor, quantized and dequantized."""
        if v not in self._real:
            scale = self.constant(f"{v.name}/scale", how.scale)
            zero = self.constant(f"{v.name}/zero", how.zero)
            like = replace(v, dtype=zero.dtype)
            stem = f"{v.name}/quantized"
            whole = self.op("QuantizeLinear", stem, like, v, scale, zero)
            stem = f"{v.name}/dequantized"
            self._real[v] = self.op("DequantizeLinear", stem, v, whole, scale, zero)
        return self._real[v]

    def known(
        self,
        v: Value,
        whole: Array,
        scales: Array,
        axis: int,
    ) -> Value:
        """A constant, dequantized from integers with scales along an axis."""
        w = self.constant(f"{v.name}/quantized", whole)
        scale = self.constant(f"{v.name}/scale", scales)
        zero = self.constant(f"{v.name}/zero", np.zeros(scales.shape, whole.dtype))
        stem = f"{v.name}/dequantized"
        return self.op("DequantizeLinear", stem, v, w, scale, zero, axis=axis)

    def done(self) -> Graph:
        """The graph with everything that was added."""
        return self.graph.with_operations(self.operations, self.constants)


def write_qdq(
    graph: Graph,
    layers: Mapping[Operation, Layer],
    places: QuantizedPlaces,
    affine: Mapping[Value, AffineQuantization],
    weights: Mapping[Operation, Weights],
    biases: Mapping[Slot, Array],
) -> Graph:
    """The graph with layers in QDQ form. affine: for the tensors in `places`. biases: new ones."""
    out = QdqWriter(graph)
    for op in graph.operations:
        inputs = list(op.inputs)
        for n, v in enumerate(op.inputs):
            if v is not None and (op, n) in places.reads:
                inputs[n] = out.rounded(v, affine[v])
        for n in range(len(inputs) + 1):
            if (op, n) in biases:
                inputs[n : n + 1] = [out.bias(op, n, biases[op, n])]
        if op in layers:
            _write_parameters(out, layers[op], affine, weights, inputs)
        changed = tuple(inputs) != op.inputs
        out.operations.append(replace(op, inputs=tuple(inputs)) if changed else op)
    return out.done()


def _write_parameters(
    out: QdqWriter,
    layer: Layer,
    affine: Mapping[Value, AffineQuantization],
    weights: Mapping[Operation, Weights],
    inputs: list[Value | None],
) -> None:
    """Replace the layer's weights and bias among its inputs by dequantized integers."""
    w = weights[layer.op]
    inputs[1] = out.known(layer.weight, w.whole, w.scales, w.axis)
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is None or bias not in out.constants:
        return
    b = out.constants[bias]
    scales = affine[layer.data].scale * w.scales
    whole = whole_bias(b, scales)
    if whole is not None:
        inputs[2] = out.known(bias, whole, scales, 0)


def whole_bias(
    b: Array,
    scales: Array,
) -> Array | None:
    """The bias in int32 in these units.

    None if it overflows, or is not a vector with one number per channel.
    """
    if b.shape != scales.shape or b.dtype != np.float32:
        return None
    whole = np.rint(b.astype(np.float64) / scales)
    if not (np.abs(whole) <= _WHOLE.max // 2).all():
        return None
    return whole.astype(np.int32)
