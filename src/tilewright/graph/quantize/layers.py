"""The layers of a model to quantize: products of computed data with constant weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.rules.quantization import MOST_TERMS

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """A Conv, Gemm or MatMul of computed data with constant weights.

    channels: the axis of the weights that corresponds to the results' columns or channels. inputs:
    the axis that is summed with the data. data_axis: the channel axis of the data.
    """

    op: Operation
    channels: int
    inputs: int
    data_axis: int

    @property
    def name(self) -> str:
        """Its name in a report."""
        return self.op.label

    @property
    def data(self) -> Value:
        """The data that it reads."""
        return _operand(self.op, 0)

    @property
    def weight(self) -> Value:
        """Its weights, a constant."""
        return _operand(self.op, 1)

    @property
    def bias(self) -> Value | None:
        """Its own bias, if it has one."""
        return self.op.inputs[2] if len(self.op.inputs) > 2 else None

    @property
    def result(self) -> Value:
        """The result."""
        return self.op.writes[0]

    @property
    def group(self) -> int:
        """The number of groups; 1 except for a grouped convolution."""
        return int(self.op.attr("group", 1))


@dataclass(frozen=True, slots=True)
class SkippedLayer:
    """An operation that could be a layer, and the reason why it stays in floats."""

    op: Operation
    why: str


def _operand(
    op: Operation,
    n: int,
) -> Value:
    v = op.inputs[n]
    assert v is not None
    return v


def _convolution(op: Operation) -> Layer:
    return Layer(op, channels=0, inputs=1, data_axis=1)


def _product(op: Operation) -> Layer:
    return Layer(op, channels=1, inputs=0, data_axis=-1)


def _gemm(op: Operation) -> Layer:
    if op.attr("transB", 0):
        return Layer(op, channels=0, inputs=1, data_axis=-1)
    return _product(op)


_KINDS: Mapping[str, Callable[[Operation], Layer]] = {
    "Conv": _convolution,
    "Gemm": _gemm,
    "MatMul": _product,
}


def find_layers(graph: Graph) -> tuple[list[Layer], list[SkippedLayer]]:
    """The layers that can be quantized, in order, and the others, with the reason."""
    layers: list[Layer] = []
    skipped: list[SkippedLayer] = []
    for op in graph.operations:
        if op.qualified not in _KINDS:
            continue
        why = _reason(graph, op)
        if why:
            skipped.append(SkippedLayer(op, why))
        else:
            layers.append(_KINDS[op.qualified](op))
    return layers, skipped


def _reason(
    graph: Graph,
    op: Operation,
) -> str:
    """The reason why the operation is not a layer to quantize; empty if it is one."""
    data, weight = (_operand(op, n) for n in (0, 1))
    w = graph.constants.get(weight)
    if w is None:
        return "its weights are computed"
    if data in graph.constants:
        return "its data are constant"
    if data.dtype is not float32 or weight.dtype is not float32:
        return f"it computes in {data.dtype}, not in float32"
    return _unfit(op, w)


def _unfit(
    op: Operation,
    w: Array,
) -> str:
    """As `_reason`, for the weights and attributes."""
    if not w.size:
        return "its weights are empty"
    if not np.isfinite(w).all():
        return "its weights are not finite"
    layer = _KINDS[op.qualified](op)
    if op.qualified == "Conv":
        terms = math.prod(w.shape[1:])
    elif w.ndim != 2:
        return f"its weights are of rank {w.ndim}, not a matrix"
    else:
        terms = w.shape[layer.inputs]
    if terms > MOST_TERMS:
        return f"int32 does not hold its sums of {terms} terms"
    if op.qualified == "Gemm" and not _is_plain(op):
        return "it transposes its data, or has an alpha or beta"
    return ""


def _is_plain(op: Operation) -> bool:
    """Whether it neither transposes nor scales its data. Without a bias, beta has no effect."""
    if op.attr("transA", 0) or op.attr("alpha", 1.0) != 1.0:
        return False
    has_bias = len(op.inputs) > 2 and op.inputs[2] is not None
    return not has_bias or op.attr("beta", 1.0) == 1.0
