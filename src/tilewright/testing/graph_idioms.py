"""Pieces of random graphs that networks have and single operators hardly lead to."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.graph.nodes import Value
from tilewright.testing.graph_ops import Piece, far
from tilewright.testing.graphs import Builder, Rejected


def _image(b: Builder) -> Value:
    """A value [N, C, H, W] of float32 with room for windows of 3; a new input if there is none."""
    try:
        return b.pick(
            lambda v: (
                v.dtype is dtypes.float32
                and len(v.extents) == 4
                and min(v.extents[2:]) > 2
            )
        )
    except Rejected:
        sides = [max(3, min(e, 17)) for e in b.extents[2:]]
        return b.leaf(
            (b.rng.choice((1, 1, 2)), b.rng.choice((1, 3, 4, 8)), *sides), fixed=False
        )


def _convolved(b: Builder, x: Value, channels: int | None = None) -> Value:
    """Padded so that the extents stay."""
    w = b.leaf((channels or x.extents[1], x.extents[1], 3, 3), x.dtype, fixed=True)
    y = b.op("Conv", x, w, pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    return b.op("Mul", y, b.given(np.array(0.25, np.float32)))


def pooled_then_padded(b: Builder) -> None:
    """The stem of a network: overlapping, padded windows, then what reads beyond their edges."""
    x = _image(b)
    attrs: dict[str, Any] = {
        "kernel_shape": [3, 3],
        "strides": [b.rng.choice((1, 2))] * 2,
    }
    if b.rng.random() < 0.6:
        attrs["pads"] = [1, 1, 1, 1]
    _convolved(
        b,
        b.op(b.rng.choice(("MaxPool", "AveragePool")), x, **attrs),
        b.rng.choice((2, 4)),
    )


def joined_parts(b: Builder) -> None:
    """Parts of tensors side by side: slices, poolings, convolutions, the tensor itself."""
    x = _image(b)
    half = max(1, x.extents[1] // 2)
    window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    parts = []
    for _ in range(b.rng.randint(2, 3)):
        way = b.rng.choice(("slice", "pool", "conv", "itself", "unary"))
        if way == "slice":
            parts.append(b.op("Slice", x, b.ints(0), b.ints(half), b.ints(1)))
        elif way == "pool":
            parts.append(b.op(b.rng.choice(("MaxPool", "AveragePool")), x, **window))
        elif way == "conv":
            parts.append(_convolved(b, x, b.rng.choice((1, 2, 4))))
        elif way == "unary":
            parts.append(b.op(b.rng.choice(("Relu", "Sigmoid")), x))
        else:
            parts.append(x)
    b.op("Concat", *parts, axis=1)


def residual_of_parts(b: Builder) -> None:
    """x + concat(f(a part of x), g(the rest of x))."""
    x = _image(b)
    channels = x.extents[1]
    if channels < 2:
        raise Rejected
    at = b.rng.randint(1, channels - 1)
    low = b.op("Slice", x, b.ints(0), b.ints(at), b.ints(1))
    high = b.op("Slice", x, b.ints(at), b.ints(channels), b.ints(1))
    parts = [_convolved(b, low), b.op(b.rng.choice(("Relu", "Tanh", "Neg")), high)]
    b.op("Relu", b.op("Add", x, b.op("Concat", *parts, axis=1)))


def quantized_chain(b: Builder) -> None:
    """Quantized and back, then a product with quantized weights."""
    x = b.pick(lambda v: v.dtype is dtypes.float32 and 2 <= len(v.extents) <= 4)
    again = _quantized(b, x)
    if b.rng.random() < 0.5 and again.extents[-1]:
        w = b.leaf(
            (again.extents[-1], b.rng.choice((3, 8, 16))), dtypes.int8, fixed=True
        )
        scale = b.given(np.array(0.125, np.float32))
        again = b.op("MatMul", again, b.op("DequantizeLinear", w, scale))
    b.op(b.rng.choice(("Relu", "Identity")), again)


def _quantized(b: Builder, x: Value) -> Value:
    kind = b.rng.choice((np.int8, np.uint8))
    step = 0.0625 * b.rng.choice((1, 2))
    far(b.truth[x] / step - 0.5 - np.round(b.truth[x] / step - 0.5), x.dtype)
    scale = b.given(np.array(step, np.float32))
    zero = b.given(np.array(b.rng.choice((0, 3)), kind))
    return b.op("DequantizeLinear", b.op("QuantizeLinear", x, scale, zero), scale, zero)


IDIOMS: dict[str, tuple[Piece, float]] = {
    f.__name__: (f, weight)
    for f, weight in (
        (pooled_then_padded, 3), (joined_parts, 3), (residual_of_parts, 2), (quantized_chain, 2),
    )
}  # fmt: skip
