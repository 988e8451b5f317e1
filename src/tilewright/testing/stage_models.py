"""Random models whose tensors are written in parts, shared, placed in one another, and returned.

Their pieces lead to halos, concatenations without copies, windows along one axis after another, and
results that are inner tensors, inputs, constants, or one tensor twice.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.nodes import Value
from tilewright.testing import graph_images as images
from tilewright.testing import graph_ops as ops
from tilewright.testing.graphs import Case, OperatorRejected, RandomGraphBuilder
from tilewright.testing.random_graphs import outputs_of

CHANNELS = (1, 2, 2, 3, 3, 4, 4, 4, 5, 8, 16, 17)
SIZES = (2, 3, 4, 5, 6, 7, 9)
Attributes = dict[str, Any]


class _Builder(RandomGraphBuilder):
    """Tensors of at most this many elements: the interpreter takes them one after another."""

    most = 1000

    def op(
        self,
        op_type: str,
        *inputs: Value | None,
        outputs: int = 1,
        **attrs: Any,
    ) -> Value:
        count = len(self.typer.operations)
        values = len(self.values)
        made = super().op(op_type, *inputs, outputs=outputs, **attrs)
        if made.static and np.prod(made.extents) > self.most:
            del self.typer.operations[count:], self.values[values:]
            raise OperatorRejected
        return made


def random_model(seed: int, operators: int | None = None) -> Case:
    """The model number `seed`, of about `operators` operators (None: 2 to 7)."""
    rng = random.Random(seed)
    b = _Builder(rng, OnnxFallback())
    b.extents = [rng.choice(SIZES) for _ in range(3)] + [rng.choice((16, 3))]
    image(b)
    if rng.random() < 0.4:
        image(b)
    if rng.random() < 0.3:
        b.leaf(b.shape(2), fixed=False)
    if operators is None:
        wanted = rng.randint(2, 7)
    else:
        wanted = operators
    pieces, weights = zip(*PIECES, strict=True)
    for _ in range(wanted * 8):
        if len(b.typer.operations) >= wanted:
            break
        try:
            rng.choices(pieces, weights)[0](b)
        except OperatorRejected:
            continue
    graph = b.graph(outputs_of(b, b.typer.operations))
    return Case(graph, {v.name: a for v, a in b.inputs.items()})


def image(b: RandomGraphBuilder) -> Value:
    """A new input [N, C, H, W]."""
    shape = (
        b.one_of(1, 1, 2),
        b.rng.choice(CHANNELS),
        b.extents[0],
        b.extents[1],
    )
    return b.leaf(shape, fixed=False)


def _image(b: RandomGraphBuilder) -> Value:
    return b.pick(lambda v: len(v.extents) == 4 and v.dtype is dtypes.float32)


def _windows(
    b: RandomGraphBuilder,
    x: Value,
    most: int,
) -> Attributes:
    """Windows that overlap more often than not, padded more often than not."""
    kernel = []
    for e in x.extents[2:]:
        fitting = [k for k in (1, 2, 3, 3) if k <= min(e, most)]
        if not fitting:
            raise OperatorRejected(f"no window fits into {e} elements")
        kernel.append(b.rng.choice(fitting))
    attrs: Attributes = {"kernel_shape": kernel}
    if b.chance(0.5):
        attrs["strides"] = [b.one_of(1, 2, 2, 3) for _ in kernel]
    if b.chance(0.6):
        attrs["pads"] = [b.rng.randint(0, k // 2) for k in (*kernel, *kernel)]
    return attrs


def pooled(b: RandomGraphBuilder) -> None:
    x = _image(b)
    _pool(b, x)


def _pool(b: RandomGraphBuilder, x: Value) -> Value:
    name = b.one_of("MaxPool", "MaxPool", "AveragePool")
    attrs = _windows(b, x, 3)
    if name == "AveragePool" and b.chance(0.5):
        attrs["count_include_pad"] = 1
    return b.op(name, x, **attrs)


def convolved(b: RandomGraphBuilder) -> None:
    _convolution(b, _image(b))


def _convolution(
    b: RandomGraphBuilder,
    x: Value,
    keep: bool = False,
) -> Value:
    """A convolution, mostly padded; `keep`: as large as its input."""
    channels = x.extents[1]
    if b.chance(0.2):
        group = channels
    else:
        group = 1
    if group > 1:
        out = channels
    else:
        out = b.one_of(1, 2, 3, 4, 4, 8)
    attrs: Attributes
    if keep:
        k = b.one_of(1, 3, 3, 3)
        attrs = {"kernel_shape": [k, k], "pads": [k // 2] * 4}
    else:
        attrs = _windows(b, x, 3)
    shape = (out, channels // group, *attrs["kernel_shape"])
    fixed = b.chance(0.9)
    w = b.leaf(shape, fixed=fixed)
    scaled = b.op("Conv", x, w, group=group, **attrs)
    if b.chance(0.2):
        quarter = b.given(np.array([0.25], np.float32))
        return b.op("Mul", scaled, quarter)
    return scaled


def branches(b: RandomGraphBuilder) -> None:
    """As in an inception block: several branches from one image, concatenated."""
    x = _image(b)
    same: Attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    parts = []
    for _ in range(b.rng.randint(2, 3)):
        way = b.one_of("pool", "mean", "conv", "unary", "itself")
        if way in ("pool", "mean"):
            name = "MaxPool" if way == "pool" else "AveragePool"
            parts.append(b.op(name, x, **same))
        elif way == "conv":
            parts.append(_convolution(b, x, keep=True))
        elif way == "unary":
            parts.append(b.op(b.one_of("Relu", "Neg", "Sigmoid"), x))
        else:
            parts.append(x)
    b.op("Concat", *parts, axis=1)


def padded_reader(b: RandomGraphBuilder) -> None:
    """A reader beyond the edges of a tensor, and usually another plain reader."""
    x = _image(b)
    _convolution(b, x, keep=True)
    if b.chance(0.5):
        b.op(b.one_of("Relu", "Neg", "GlobalMaxPool", "Softmax"), x)


def stem(b: RandomGraphBuilder) -> None:
    """A pooling or a similar operator, then one that reads beyond the edges of its result."""
    x = _image(b)
    way = b.one_of("pool", "pool", "pool", "conv", "concat", "unary")
    if way == "pool":
        y = _pool(b, x)
    elif way == "conv":
        y = _convolution(b, x)
    elif way == "concat":
        negative = b.op("Neg", x)
        axis = b.rng.randint(0, 3)
        y = b.op("Concat", x, negative, axis=axis)
    else:
        y = b.op("Sigmoid", x)
    if b.chance(0.3):
        y = b.op(b.one_of("Relu", "Tanh", "Softmax"), y)
    _convolution(b, y, keep=True)


def dense(b: RandomGraphBuilder) -> None:
    """Every layer appends to the results of all earlier ones; inner results have other readers,
    too."""
    x = _image(b)
    for _ in range(b.rng.randint(1, 2)):
        if b.chance(0.6):
            y = _convolution(b, x, keep=True)
        else:
            y = b.op("Sigmoid", x)
        if b.chance(0.7):
            parts = [x, y]
        else:
            parts = [y, x]
        x = b.op("Concat", *parts, axis=1)
        if b.chance(0.5):
            b.op("GlobalMaxPool", y)


def cropped(b: RandomGraphBuilder) -> None:
    """A part of an image, padded again or not."""
    x = _image(b)
    h, w = x.extents[2:]
    top = b.rng.randint(0, max(h - 2, 0))
    left = b.rng.randint(0, max(w - 2, 0))
    axes = (2, 3)
    starts = b.ints(top, left)
    ends = b.ints(h, w)
    y = b.op("Slice", x, starts, ends, b.ints(*axes))
    if b.chance(0.5):
        before = (0, 0, top, left)
        pads = b.ints(*before, 0, 0, 0, 0)
        b.op("Pad", y, pads)


def added(b: RandomGraphBuilder) -> None:
    """A shortcut around one or two operators."""
    x = _image(b)
    if b.chance(0.5):
        y = _convolution(b, x, keep=True)
    else:
        y = b.op("Relu", x)
    y = b.op("Add", x, y)
    if b.chance(0.5):
        b.op("Relu", y)


def mirrored(b: RandomGraphBuilder) -> None:
    """t + t^T, whose result cannot take the place of t."""
    x = b.pick(lambda v: len(v.extents) >= 2 and v.extents[-1] == v.extents[-2])
    rank = len(x.extents)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    t = b.op("Transpose", x, perm=perm)
    b.op(b.one_of("Add", "Sub", "Max"), x, t)


def square(b: RandomGraphBuilder) -> None:
    n = b.one_of(3, 4, 8, 16)
    x = b.leaf((n, n), fixed=False)
    b.op("Neg", x)
    mirrored(b)


def sibling_reductions(b: RandomGraphBuilder) -> None:
    """Several reductions of one tensor, and sometimes a map of it in between."""
    x = b.floating(1, 4)
    axis = b.rng.randrange(-1, len(x.extents) - 1)
    if 0 in x.extents:
        raise OperatorRejected
    keep = b.bit()
    other = b.one_of("ReduceMax", "ReduceMin", "ReduceMean")
    for name in ("ReduceSum", other):
        b.op(name, x, b.ints(axis), keepdims=keep)
        if b.chance(0.3):
            b.op("Neg", x)


def sibling_maps(b: RandomGraphBuilder) -> None:
    """Several maps of one tensor; one may read another."""
    x = b.floating(1, 4)
    y = b.op("Add", x, b.partner(x))
    b.op(b.one_of("Relu", "Neg", "Abs"), b.one_of(x, y))


def sibling_products(b: RandomGraphBuilder) -> None:
    """Products of one tensor with constants, which others read."""
    x = b.leaf((b.one_of(1, 3, 6), b.one_of(4, 5)), fixed=False)
    for _ in range(b.rng.randint(2, 3)):
        width = b.one_of(2, 4, 16)
        fixed = b.chance(0.9)
        weights = b.leaf((x.extents[1], width), fixed=fixed)
        y = b.op("MatMul", x, weights)
        if b.chance(0.7):
            bias = b.leaf((width,), fixed=True)
            biased = b.op("Add", y, bias)
            y = b.op("Relu", biased)
        last = b.leaf((width, 3), fixed=True)
        b.op("MatMul", y, last)


def residual_norm(b: RandomGraphBuilder) -> None:
    """A sum that is normalized, and used on."""
    x = b.leaf((b.one_of(2, 3), b.one_of(5, 8, 17)), fixed=False)
    y = b.op("Add", x, b.leaf(x.extents, x.dtype, fixed=False))
    scale = b.leaf((x.extents[-1],), fixed=True)
    z = b.op("LayerNormalization", y, scale, axis=-1)
    if b.chance(0.5):
        other = z
    else:
        other = x
    name = b.one_of("Add", "Mul")
    b.op(name, y, other)


def hosted(b: RandomGraphBuilder) -> None:
    """An operator without native code."""
    x = _image(b)
    batch, channels, *spatial = x.extents
    classes = [b.rng.randrange(channels) for _ in range(batch * math.prod(spatial))]
    labels = b.given(np.reshape(classes, (batch, *spatial)), True)
    losses = b.op("SoftmaxCrossEntropyLoss", x, labels, reduction="none")
    axes = b.given(np.array([1]), True)
    b.op("Unsqueeze", losses, axes)


PIECES = (
    (pooled, 6.0),
    (convolved, 4.0),
    (branches, 6.0),
    (padded_reader, 6.0),
    (stem, 24.0),
    (dense, 8.0),
    (cropped, 2.0),
    (added, 3.0),
    (mirrored, 1.0),
    (square, 0.7),
    (sibling_reductions, 4.0),
    (sibling_maps, 3.0),
    (sibling_products, 8.0),
    (residual_norm, 3.0),
    (hosted, 0.4),
    (ops.unary, 2.0),
    (ops.binary, 2.0),
    (ops.where, 1.0),
    (ops.clip, 0.5),
    (ops.concat, 4.0),
    (ops.split, 1.5),
    (ops.slices, 2.0),
    (ops.pad, 2.0),
    (ops.transpose, 2.0),
    (ops.reshape, 2.0),
    (ops.expand, 0.5),
    (ops.tile, 0.5),
    (ops.gather, 0.7),
    (ops.reduction, 3.0),
    (ops.arg, 1.0),
    (ops.cumsum, 1.0),
    (ops.softmax, 1.5),
    (ops.layer_norm, 1.0),
    (images.batch_norm, 1.0),
    (images.instance_norm, 0.7),
    (images.global_pool, 0.7),
    (ops.matmul, 1.5),
    (images.depth, 0.7),
    (images.conv_transpose, 0.7),
)
