"""Pieces of random graphs that networks have and single operators hardly lead to."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.graph.nodes import Value
from tilewright.testing.conditioning import far
from tilewright.testing.graph_ops import Piece
from tilewright.testing.graphs import OperatorRejected, RandomGraphBuilder


def _image(b: RandomGraphBuilder) -> Value:
    """A value [N, C, H, W] of float32 with room for windows of 3; a new input if there is none."""
    try:
        return b.pick(_has_room)
    except OperatorRejected:
        sides = [max(3, min(e, 17)) for e in b.extents[2:]]
        batch = b.one_of(1, 1, 2)
        channels = b.one_of(1, 3, 4, 8)
        return b.leaf((batch, channels, *sides), fixed=False)


def _has_room(v: Value) -> bool:
    if v.dtype is not dtypes.float32:
        return False
    if len(v.extents) != 4:
        return False
    return min(v.extents[2:]) > 2


def _convolved(
    b: RandomGraphBuilder,
    x: Value,
    channels: int | None = None,
) -> Value:
    """Padded so that the extents stay."""
    own = x.extents[1]
    w = b.leaf((channels or own, own, 3, 3), x.dtype, fixed=True)
    pads = [1] * 4
    y = b.op("Conv", x, w, pads=pads, kernel_shape=[3, 3])
    scale = b.given(np.array(0.25, np.float32))
    return b.op("Mul", y, scale)


def pooled_then_padded(b: RandomGraphBuilder) -> None:
    """The stem of a network: overlapping, padded windows, then a reader beyond their edges."""
    x = _image(b)
    attrs: dict[str, Any] = {
        "kernel_shape": [3, 3],
        "strides": [b.one_of(1, 2)] * 2,
    }
    if b.chance(0.6):
        attrs["pads"] = [1, 1, 1, 1]
    pooling = b.one_of("MaxPool", "AveragePool")
    pooled = b.op(pooling, x, **attrs)
    channels = b.one_of(2, 4)
    _convolved(b, pooled, channels)


def joined_parts(b: RandomGraphBuilder) -> None:
    """Parts of tensors side by side: slices, poolings, convolutions, the tensor itself."""
    x = _image(b)
    half = max(1, x.extents[1] // 2)
    window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4}
    parts = []
    for _ in range(b.rng.randint(2, 3)):
        way = b.one_of("slice", "pool", "conv", "itself", "unary")
        if way == "slice":
            parts.append(b.slice(x, 0, half, axis=1))
        elif way == "pool":
            pooling = b.one_of("MaxPool", "AveragePool")
            parts.append(b.op(pooling, x, **window))
        elif way == "conv":
            channels = b.one_of(1, 2, 4)
            parts.append(_convolved(b, x, channels))
        elif way == "unary":
            unary = b.one_of("Relu", "Sigmoid")
            parts.append(b.op(unary, x))
        else:
            parts.append(x)
    b.op("Concat", *parts, axis=1)


def residual_of_parts(b: RandomGraphBuilder) -> None:
    """x + concat(f(a part of x), g(the rest of x))."""
    x = _image(b)
    channels = x.extents[1]
    if channels < 2:
        raise OperatorRejected
    at = b.rng.randint(1, channels - 1)
    low = b.slice(x, 0, at, axis=1)
    high = b.slice(x, at, channels, axis=1)
    low = _convolved(b, low)
    unary = b.one_of("Relu", "Tanh", "Neg")
    high = b.op(unary, high)
    changed = b.op("Concat", low, high, axis=1)
    total = b.op("Add", x, changed)
    b.op("Relu", total)


def quantized_chain(b: RandomGraphBuilder) -> None:
    """Quantized and back, then a product with quantized weights."""
    x = b.pick(lambda v: v.dtype is dtypes.float32 and 2 <= len(v.extents) <= 4)
    again = _quantized(b, x)
    if b.chance(0.5) and again.extents[-1]:
        shape = (again.extents[-1], b.one_of(3, 8, 16))
        w = b.leaf(shape, dtypes.int8, fixed=True)
        scale = b.given(np.array(0.125, np.float32))
        weights = b.op("DequantizeLinear", w, scale)
        again = b.op("MatMul", again, weights)
    unary = b.one_of("Relu", "Identity")
    b.op(unary, again)


def _quantized(b: RandomGraphBuilder, x: Value) -> Value:
    kind = b.one_of(np.int8, np.uint8)
    step = 0.0625 * b.one_of(1, 2)
    shifted = b.truth[x] / step - 0.5
    distance = shifted - np.round(shifted)
    far(distance, x.dtype)
    scale = b.given(np.array(step, np.float32))
    zero = b.given(np.array(b.one_of(0, 3), kind))
    quantized = b.op("QuantizeLinear", x, scale, zero)
    return b.op("DequantizeLinear", quantized, scale, zero)


IDIOMS: dict[str, tuple[Piece, float]] = {
    f.__name__: (f, weight)
    for f, weight in (
        (pooled_then_padded, 3),
        (joined_parts, 3),
        (residual_of_parts, 2),
        (quantized_chain, 2),
    )
}
