"""Normalizations: reductions over part of a tensor, then a map.

Floats narrower than float32 are computed in float32 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, call
from tilewright.graph.nodes import Operation
from tilewright.graph.ops.broadcasting import (
    element,
    refuse_stretching,
    wide,
    wide_dtype,
    widened,
)
from tilewright.graph.ops.casts import dtype_attribute
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.reduce import point_of, reduced_shape
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import SPATIAL

Buffers = Sequence[Buffer]


@dataclass(frozen=True)
class Moments:
    """The mean and variance over some axes of a tensor, and how to compute them.

    mean, square: buffers with extents of 1 at those axes; square holds the sum of squared
    deviations. steps: the Computations that fill them.
    """

    mean: Buffer
    square: Buffer
    count: int
    steps: tuple[Computation, ...]

    def inverse(self, i: Sequence[Any], epsilon: float) -> Expr:
        """1 / sqrt(variance + epsilon) at a point of the tensor."""
        variance = element(self.square, i) / self.count
        return 1.0 / call("sqrt", variance + epsilon)


def moments(
    name: str,
    x: Buffer,
    axes: Sequence[int],
) -> Moments:
    """Two passes, the second over the deviations from the mean, to avoid cancellation."""
    rank = len(x.shape)
    shape = reduced_shape(x.shape, axes, keep=True)
    over = [x.shape[a] for a in axes]
    count = max(math.prod(over), 1)
    dtype = wide_dtype(x.dtype)
    total = Buffer(f"{name}_sum", shape, dtype)
    mean = Buffer(f"{name}_mean", shape, dtype)
    square = Buffer(f"{name}_square", shape, dtype)

    def term(*i: Any) -> Expr:
        return wide(x[point_of(axes, rank, True, i)])

    def squared_deviation(*i: Any) -> Expr:
        deviation = term(*i) - mean[i[:rank]]
        return deviation * deviation

    steps = (
        reduce_(total.name, total, over, "add", term),
        map_(mean.name, mean, lambda *i: total[i] / count),
        reduce_(square.name, square, over, "add", squared_deviation),
    )
    return Moments(mean, square, count, steps)


# ------------------------------------------------------------------------- BatchNormalization


def normalizes_by_batch(norm: Operation) -> bool:
    """Whether a BatchNormalization uses the statistics of the batch rather than the given ones.

    Since version 14 an attribute says so. From version 7 on it does if outputs besides the result
    are used, and before that unless `is_test` is set.
    """
    if norm.version >= 14:
        return bool(norm.attr("training_mode", 0))
    if norm.version >= 7:
        return gives_statistics(norm)
    return not norm.attr("is_test", 0)


def gives_statistics(norm: Operation) -> bool:
    """Whether a BatchNormalization has outputs besides the result."""
    return any(v is not None for v in norm.outputs[1:])


def _check_channels(op: OpCall, *names: str) -> None:
    """Raise ModelError unless the operands after the first have a number for each channel."""
    x = op.shape(0)
    each = x[1:] if op.attr("spatial", 1) == 0 else x[1:2] or (1,)
    for n, name in enumerate(names, start=1):
        shape = op.shape(n)
        if shape != each:
            raise op.error(f"{name} has the shape {list(shape)}, expected {list(each)}")


def _batch_norm_types(op: OpCall) -> Sequence[Type]:
    _check_channels(op, "scale", "B", "mean", "var")
    if op.wants(3) or op.wants(4):
        raise UnsupportedError(
            "ONNX does not define what it saves for a gradient",
            where=f"node {op.operation.label!r} ({op.operation.qualified})",
            hint="leave out outputs 3 and 4, or export the model with opset 14 or later",
        )
    statistics = (op.dtype(3), op.shape(3))
    others = len(op.operation.outputs) - 1
    return [*same_type(op), *[statistics] * others]


def _batch_norm(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    """At inference the statistics are inputs, so each element takes one multiply-add."""
    x, scale, bias, mean, variance = inputs[:5]
    out = outputs[0]
    per_channel = bool(op.attr("spatial", 1))
    if not x.dtype.is_float:
        return None
    if normalizes_by_batch(op.operation):
        if not per_channel or len(x.shape) < 2:
            return None
        return _batch_norm_training(op, inputs, outputs)
    if gives_statistics(op.operation):
        return None
    epsilon = op.attr("epsilon", 1e-5)
    dtype = wide_dtype(x.dtype)
    factor = Buffer(f"{op.name}_factor", scale.shape, dtype)
    offset = Buffer(f"{op.name}_offset", scale.shape, dtype)

    def to(e: Expr) -> Expr:
        return cast(e, dtype)

    def inverse(*c: Any) -> Expr:
        deviation = call("sqrt", to(variance[c]) + epsilon)
        return to(scale[c]) / deviation

    def shift(*c: Any) -> Expr:
        return to(bias[c]) - to(mean[c]) * factor[c]

    def normal(*i: Any) -> Expr:
        c = (i[1:2] or (0,)) if per_channel else i[1:]
        return cast(to(x[i]) * factor[c] + offset[c], out.dtype)

    return [
        map_(factor.name, factor, inverse),
        map_(offset.name, offset, shift),
        map_(op.name, out, normal),
    ]


def _batch_norm_training(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    """By the statistics of the batch itself; the given ones move towards them."""
    x, scale, bias = inputs[:3]
    out = outputs[0]
    rank = len(x.shape)
    m = moments(op.name, x, [a for a in range(rank) if a != 1])
    epsilon = op.attr("epsilon", 1e-5)
    momentum = op.attr("momentum", 0.9)

    def normal(*i: Any) -> Expr:
        c = i[1]
        y = (wide(x[i]) - element(m.mean, i)) * m.inverse(i, epsilon)
        return cast(y * wide(scale[c]) + wide(bias[c]), out.dtype)

    def moved(k: int, statistic: Buffer, count: int) -> Computation:
        """Output `k`: the given statistic, moved towards that of the batch."""

        def value(c: Any) -> Expr:
            channel = tuple(c if a == 1 else 0 for a in range(rank))
            old = cast(inputs[2 + k][c], statistic.dtype)
            seen = statistic[channel] / count
            new = old * momentum + seen * (1.0 - momentum)
            return cast(new, outputs[k].dtype)

        return map_(f"{op.name}_moved_{k}", outputs[k], value)

    found = [*m.steps, map_(op.name, out, normal)]
    if op.wants(1):
        found.append(moved(1, m.mean, 1))
    if op.wants(2):
        found.append(moved(2, m.square, m.count))
    return found


def _batch_norm_arrays(op: OpCall, x: Array, *rest: Array) -> list[Array] | None:
    per_channel = bool(op.attr("spatial", 1))
    trains = normalizes_by_batch(op.operation)
    if trains and not per_channel:
        return None
    if gives_statistics(op.operation) and not trains:
        return None
    if not per_channel:
        shape: tuple[int, ...] = (1, *x.shape[1:])
    elif x.ndim > 1:
        shape = (1, -1, *(1,) * (x.ndim - 2))
    else:
        shape = (-1,)
    scale, bias, mean, variance = (widened(a).reshape(shape) for a in rest)
    moved: list[Array] = []
    if trains:
        wide_x = widened(x)
        axes = tuple(a for a in range(x.ndim) if a != 1)
        momentum = op.attr("momentum", 0.9)
        old = (mean, variance)
        mean = np.mean(wide_x, axes, keepdims=True)
        variance = np.var(wide_x, axes, keepdims=True)
        for a, b, given in zip(old, (mean, variance), rest[2:], strict=True):
            new = a * momentum + b * (1 - momentum)
            moved.append(new.astype(given.dtype).reshape(given.shape))
    root = np.sqrt(variance + op.attr("epsilon", 1e-5))
    y = (widened(x) - mean) / root * scale + bias
    return [y.astype(x.dtype), *moved][: len(op.operation.outputs)]


register(
    OpDef(
        "BatchNormalization",
        _batch_norm_types,
        since=6,
        compute=_batch_norm,
        reference=_batch_norm_arrays,
        flops=lambda op: 2 * op.size(0),
        traits=SPATIAL,
    )
)


# --------------------------------------------------------------- LayerNormalization and others


def _layer_axes(op: OpCall) -> list[int]:
    rank = op.rank(0)
    return list(range(op.own_axis(rank, -1), rank))


def _layer_types(op: OpCall) -> Sequence[Type]:
    shape = op.shape(0)
    refuse_stretching(op, scale=1, B=2)
    stash = dtype_attribute(op, "stash_type", wide_dtype(op.dtype(0)))
    statistics = (stash, reduced_shape(shape, _layer_axes(op), keep=True))
    return [(op.dtype(0), shape), statistics, statistics]


def _layer_norm(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    scale = inputs[1]
    out = outputs[0]
    epsilon = op.attr("epsilon", 1e-5)
    m = moments(op.name, x, _layer_axes(op))

    def normal(*i: Any) -> Expr:
        deviation = wide(x[i]) - element(m.mean, i)
        y = deviation * m.inverse(i, epsilon) * wide(element(scale, i))
        if op.has(2):
            y = y + wide(element(inputs[2], i))
        return cast(y, out.dtype)

    found = [*m.steps, map_(op.name, out, normal)]
    if op.wants(1):
        means = outputs[1]

        def mean_at(*i: Any) -> Expr:
            return cast(m.mean[i], means.dtype)

        found.append(map_(f"{op.name}_means", means, mean_at))
    if op.wants(2):
        inverses = outputs[2]

        def inverse_at(*i: Any) -> Expr:
            return cast(m.inverse(i, epsilon), inverses.dtype)

        found.append(map_(f"{op.name}_inverse", inverses, inverse_at))
    return found


def _layer_norm_arrays(
    op: OpCall,
    x: Array,
    scale: Array,
    bias: Array | None = None,
) -> list[Array]:
    axis = op.attr("axis", -1)
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide_x = widened(x)
    mean = wide_x.mean(axes, keepdims=True)
    variance = wide_x.var(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + op.attr("epsilon", 1e-5))
    y = (wide_x - mean) * inverse * widened(scale)
    if bias is not None:
        y = y + widened(bias)
    return [y.astype(x.dtype), mean, inverse]


register(
    OpDef(
        "LayerNormalization",
        _layer_types,
        since=17,
        compute=_layer_norm,
        reference=_layer_norm_arrays,
        flops=lambda op: 8 * op.size(0),
    )
)


def _rms_types(op: OpCall) -> Sequence[Type]:
    refuse_stretching(op, scale=1)
    return same_type(op)


def _rms_norm(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    scale = inputs[1]
    out = outputs[0]
    axes = _layer_axes(op)
    rank = len(x.shape)
    epsilon = op.attr("epsilon", 1e-5)
    shape = reduced_shape(x.shape, axes, keep=True)
    over = [x.shape[a] for a in axes]
    count = max(math.prod(over), 1)
    square = Buffer(f"{op.name}_square", shape, wide_dtype(x.dtype))

    def squared(*i: Any) -> Expr:
        v = wide(x[point_of(axes, rank, True, i)])
        return v * v

    def normal(*i: Any) -> Expr:
        mean = element(square, i) / count
        inverse = 1.0 / call("sqrt", mean + epsilon)
        y = wide(x[i]) * inverse * wide(element(scale, i))
        return cast(y, out.dtype)

    return [
        reduce_(square.name, square, over, "add", squared),
        map_(op.name, out, normal),
    ]


def _rms_norm_arrays(
    op: OpCall,
    x: Array,
    scale: Array,
) -> list[Array]:
    first = op.attr("axis", -1) % x.ndim
    axes = tuple(range(first, x.ndim))
    v = widened(x)
    mean = np.mean(np.square(v), axes, keepdims=True)
    root = np.sqrt(mean + op.attr("epsilon", 1e-5))
    y = v / root * widened(scale)
    return [y.astype(x.dtype)]


register(
    OpDef(
        "RMSNormalization",
        _rms_types,
        since=23,
        compute=_rms_norm,
        reference=_rms_norm_arrays,
        flops=lambda op: 5 * op.size(0),
    )
)


def _instance_types(op: OpCall) -> Sequence[Type]:
    _check_channels(op, "scale", "B")
    return same_type(op)


def _instance_norm(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x, scale, bias = inputs
    out = outputs[0]
    epsilon = op.attr("epsilon", 1e-5)
    m = moments(op.name, x, range(2, len(x.shape)))

    def normal(*i: Any) -> Expr:
        c = i[1]
        y = (wide(x[i]) - element(m.mean, i)) * m.inverse(i, epsilon)
        return cast(y * wide(scale[c]) + wide(bias[c]), out.dtype)

    return [*m.steps, map_(op.name, out, normal)]


def _instance_norm_arrays(
    op: OpCall,
    x: Array,
    scale: Array,
    bias: Array,
) -> list[Array]:
    axes = tuple(range(2, x.ndim))
    per_channel = (1, -1, *(1,) * len(axes))
    factor = widened(scale).reshape(per_channel)
    offset = widened(bias).reshape(per_channel)
    v = widened(x)
    mean = v.mean(axes, keepdims=True)
    root = np.sqrt(v.var(axes, keepdims=True) + op.attr("epsilon", 1e-5))
    y = (v - mean) / root * factor + offset
    return [y.astype(x.dtype)]


register(
    OpDef(
        "InstanceNormalization",
        _instance_types,
        since=6,
        compute=_instance_norm,
        reference=_instance_norm_arrays,
        flops=lambda op: 8 * op.size(0),
        traits=SPATIAL,
    )
)
