"""Normalizations and the Softmax family: reductions over part of a tensor, then a map.

Floats narrower than float32 are computed in float32 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import UnsupportedError
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, call
from tilewright.graph.nodes import Operation
from tilewright.graph.ops.broadcasting import element, wide, wide_dtype, widened
from tilewright.graph.ops.casts import dtype_attribute
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import SPATIAL

Buffers = Sequence[Buffer]


def _same(op: OpCall) -> Sequence[Type]:
    return [(op.dtype(0), op.shape(0))]


@dataclass(frozen=True)
class Moments:
    """Mean and variance over some axes of a tensor, and how to compute them.

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


def moments(name: str, x: Buffer, axes: Sequence[int]) -> Moments:
    """Two passes, the second over the deviations from the mean: no cancellation."""
    rank = len(x.shape)
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    over = [x.shape[a] for a in axes]
    count = max(math.prod(over), 1)
    dtype = wide_dtype(x.dtype)
    total = Buffer(f"{name}_sum", shape, dtype)
    mean = Buffer(f"{name}_mean", shape, dtype)
    square = Buffer(f"{name}_square", shape, dtype)

    def whole(i: Sequence[Any]) -> tuple[Any, ...]:
        bound = iter(i[rank:])
        return tuple(next(bound) if a in axes else i[a] for a in range(rank))

    def deviation(*i: Any) -> Expr:
        d = wide(x[whole(i)]) - mean[i[:rank]]
        return d * d

    steps = (
        reduce_(total.name, total, over, "add", lambda *i: wide(x[whole(i)])),
        map_(mean.name, mean, lambda *i: total[i] / count),
        reduce_(square.name, square, over, "add", deviation),
    )
    return Moments(mean, square, count, steps)


# ------------------------------------------------------------------------- BatchNormalization


def normalizes_by_batch(norm: Operation) -> bool:
    """Whether a BatchNormalization takes the statistics of the batch, and not those it is given.

    Since version 14 an attribute says so; from 7 on it is so where more than the result is asked
    for, and before that unless `is_test` is set.
    """
    if norm.version >= 14:
        return bool(norm.attributes.get("training_mode", 0))
    if norm.version >= 7:
        return gives_statistics(norm)
    return not norm.attributes.get("is_test", 0)


def gives_statistics(norm: Operation) -> bool:
    """Whether more than the result of a BatchNormalization is asked for."""
    return any(v is not None for v in norm.outputs[1:])


def _batch_norm_types(op: OpCall) -> Sequence[Type]:
    x = op.shape(0)
    each = x[1:] if op.attr("spatial", 1) == 0 else x[1:2] or (1,)
    for n, name in enumerate(("scale", "B", "mean", "var"), start=1):
        if op.shape(n) != each:
            raise op.error(
                f"{name} has the shape {list(op.shape(n))}, expected {list(each)}"
            )
    if op.wants(3) or op.wants(4):
        raise UnsupportedError(
            "what it saves for a gradient is left open by ONNX",
            where=f"node {op.operation.label!r} ({op.operation.qualified})",
            hint="leave out outputs 3 and 4, or export the model with opset 14 or later",
        )
    statistics = op.dtype(3), op.shape(3)
    return [*_same(op), *[statistics] * (len(op.operation.outputs) - 1)]


def _batch_norm(
    op: OpCall, inputs: Buffers, outputs: Buffers
) -> list[Computation] | None:
    """At inference: the statistics are inputs, so it is one multiply-add per element."""
    x, scale, bias, mean, variance = inputs[:5]
    out, per_channel = outputs[0], bool(op.attr("spatial", 1))
    if not x.dtype.is_float:
        return None
    if normalizes_by_batch(op.operation):
        plain = per_channel and len(x.shape) > 1
        return _batch_norm_training(op, inputs, outputs) if plain else None
    if gives_statistics(op.operation):
        return None
    epsilon, dtype = op.attr("epsilon", 1e-5), wide_dtype(x.dtype)
    factor = Buffer(f"{op.name}_factor", scale.shape, dtype)
    offset = Buffer(f"{op.name}_offset", scale.shape, dtype)

    def to(e: Expr) -> Expr:
        return cast(e, dtype)

    def inverse(*c: Any) -> Expr:
        return to(scale[c]) / call("sqrt", to(variance[c]) + epsilon)

    def normal(*i: Any) -> Expr:
        c = (i[1:2] or (0,)) if per_channel else i[1:]
        return cast(to(x[i]) * factor[c] + offset[c], out.dtype)

    return [
        map_(factor.name, factor, inverse),
        map_(offset.name, offset, lambda *c: to(bias[c]) - to(mean[c]) * factor[c]),
        map_(op.name, out, normal),
    ]


def _batch_norm_training(
    op: OpCall, inputs: Buffers, outputs: Buffers
) -> list[Computation]:
    """By the statistics of the batch itself; those given move towards them."""
    x, scale, bias = inputs[:3]
    m = moments(op.name, x, [a for a in range(len(x.shape)) if a != 1])
    epsilon, momentum, out = (
        op.attr("epsilon", 1e-5),
        op.attr("momentum", 0.9),
        outputs[0],
    )

    def normal(*i: Any) -> Expr:
        y = (wide(x[i]) - element(m.mean, i)) * m.inverse(i, epsilon)
        return cast(y * wide(scale[i[1]]) + wide(bias[i[1]]), out.dtype)

    def channel(b: Buffer, c: Any) -> Expr:
        return b[tuple(c if a == 1 else 0 for a in range(len(b.shape)))]

    found = [*m.steps, map_(op.name, out, normal)]
    for k, (batch, count) in enumerate(((m.mean, 1), (m.square, m.count)), start=1):
        if op.wants(k):

            def moved(
                c: Any, k: int = k, batch: Buffer = batch, count: int = count
            ) -> Expr:
                old = cast(inputs[2 + k][c], batch.dtype)
                new = old * momentum + channel(batch, c) / count * (1.0 - momentum)
                return cast(new, outputs[k].dtype)

            found.append(map_(f"{op.name}_moved_{k}", outputs[k], moved))
    return found


def _batch_norm_arrays(op: OpCall, x: Array, *rest: Array) -> list[Array] | None:
    per_channel, trains = bool(op.attr("spatial", 1)), normalizes_by_batch(op.operation)
    if (trains and not per_channel) or (gives_statistics(op.operation) and not trains):
        return None
    shape = (1, -1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else (-1,)
    if not per_channel:
        shape = (1, *x.shape[1:])
    scale, bias, mean, variance = (widened(a).reshape(shape) for a in rest)
    moved: list[Array] = []
    if trains:
        axes = tuple(a for a in range(x.ndim) if a != 1)
        old, momentum = (mean, variance), op.attr("momentum", 0.9)
        mean, variance = (f(widened(x), axes, keepdims=True) for f in (np.mean, np.var))
        pairs = zip(old, (mean, variance), rest[2:], strict=True)
        moved = [
            (a * momentum + b * (1 - momentum)).astype(c.dtype).reshape(c.shape)
            for a, b, c in pairs
        ]
    root = np.sqrt(variance + op.attr("epsilon", 1e-5))
    y = ((widened(x) - mean) / root * scale + bias).astype(x.dtype)
    return [y, *moved][: len(op.operation.outputs)]


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
    return list(range(op.axis(op.attr("axis", -1), rank), rank))


def _layer_types(op: OpCall) -> Sequence[Type]:
    axes, shape = _layer_axes(op), op.shape(0)
    stash = dtype_attribute(op, "stash_type", wide_dtype(op.dtype(0)))
    statistics = (stash, tuple(1 if a in axes else n for a, n in enumerate(shape)))
    return [(op.dtype(0), shape), statistics, statistics]


def _layer_norm(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, scale, out = inputs[0], inputs[1], outputs[0]
    epsilon = op.attr("epsilon", 1e-5)
    m = moments(op.name, x, _layer_axes(op))

    def normal(*i: Any) -> Expr:
        y = (
            (wide(x[i]) - element(m.mean, i))
            * m.inverse(i, epsilon)
            * wide(element(scale, i))
        )
        if op.has(2):
            y = y + wide(element(inputs[2], i))
        return cast(y, out.dtype)

    found = [*m.steps, map_(op.name, out, normal)]
    if op.wants(1):
        mean = outputs[1]
        found.append(
            map_(f"{op.name}_means", mean, lambda *i: cast(m.mean[i], mean.dtype))
        )
    if op.wants(2):
        inverse = outputs[2]
        found.append(
            map_(
                f"{op.name}_inverse",
                inverse,
                lambda *i: cast(m.inverse(i, epsilon), inverse.dtype),
            )
        )
    return found


def _layer_norm_arrays(
    op: OpCall, x: Array, scale: Array, bias: Array | None = None
) -> list[Array]:
    axis = op.attr("axis", -1)
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide_x = widened(x)
    mean = wide_x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(wide_x.var(axes, keepdims=True) + op.attr("epsilon", 1e-5))
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


def _rms_norm(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, scale, out = inputs[0], inputs[1], outputs[0]
    axes, rank = _layer_axes(op), len(x.shape)
    epsilon = op.attr("epsilon", 1e-5)
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    over = [x.shape[a] for a in axes]
    square = Buffer(f"{op.name}_square", shape, wide_dtype(x.dtype))

    def value(*i: Any) -> Expr:
        v = wide(x[(*i[: axes[0]], *i[rank:])])
        return v * v

    def normal(*i: Any) -> Expr:
        mean = element(square, i) / max(math.prod(over), 1)
        inverse = 1.0 / call("sqrt", mean + epsilon)
        return cast(wide(x[i]) * inverse * wide(element(scale, i)), out.dtype)

    return [
        reduce_(square.name, square, over, "add", value),
        map_(op.name, out, normal),
    ]


def _rms_norm_arrays(op: OpCall, x: Array, scale: Array) -> list[Array]:
    axes = tuple(range(op.attr("axis", -1) % x.ndim, x.ndim))
    v = widened(x)
    mean = np.mean(np.square(v), axes, keepdims=True)
    return [
        (v / np.sqrt(mean + op.attr("epsilon", 1e-5)) * widened(scale)).astype(x.dtype)
    ]


register(
    OpDef(
        "RMSNormalization",
        _same,
        since=23,
        compute=_rms_norm,
        reference=_rms_norm_arrays,
        flops=lambda op: 5 * op.size(0),
    )
)


def _instance_norm(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, scale, bias = inputs
    out, epsilon = outputs[0], op.attr("epsilon", 1e-5)
    m = moments(op.name, x, range(2, len(x.shape)))

    def normal(*i: Any) -> Expr:
        y = (wide(x[i]) - element(m.mean, i)) * m.inverse(i, epsilon)
        return cast(y * wide(scale[i[1]]) + wide(bias[i[1]]), out.dtype)

    return [*m.steps, map_(op.name, out, normal)]


def _instance_norm_arrays(
    op: OpCall, x: Array, scale: Array, bias: Array
) -> list[Array]:
    axes, shape = tuple(range(2, x.ndim)), (1, -1, *(1,) * (x.ndim - 2))
    v = widened(x)
    root = np.sqrt(v.var(axes, keepdims=True) + op.attr("epsilon", 1e-5))
    y = (v - v.mean(axes, keepdims=True)) / root
    return [
        (y * widened(scale).reshape(shape) + widened(bias).reshape(shape)).astype(
            x.dtype
        )
    ]


register(
    OpDef(
        "InstanceNormalization",
        _same,
        since=6,
        compute=_instance_norm,
        reference=_instance_norm_arrays,
        flops=lambda op: 8 * op.size(0),
        traits=SPATIAL,
    )
)


# -------------------------------------------------------------------------- the Softmax family


def _softmax_axes(op: OpCall, rank: int) -> list[int]:
    """One axis since version 13; before, every axis from `axis` on."""
    if op.version >= 13:
        return [op.axis(op.attr("axis", -1), rank)]
    return list(range(op.axis(op.attr("axis", 1), rank), rank))


@dataclass(frozen=True)
class Exponentials:
    """exp(x - max) over some axes: the largest value, the exponentials and their sum."""

    top: Buffer
    terms: Buffer
    total: Buffer
    steps: tuple[Computation, ...]


def exponentials(
    name: str, x: Buffer, axes: Sequence[int], dtype: DType
) -> Exponentials:
    """The steps that Softmax and LogSoftmax share, in the accumulator dtype."""
    rank = len(x.shape)
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    over = [x.shape[a] for a in axes]
    top = Buffer(f"{name}_max", shape, dtype)
    terms = Buffer(f"{name}_exp", x.shape, dtype)
    total = Buffer(f"{name}_sum", shape, dtype)

    def whole(i: Sequence[Any]) -> tuple[Any, ...]:
        bound = iter(i[rank:])
        return tuple(next(bound) if a in axes else i[a] for a in range(rank))

    steps = (
        # A NaN is in the sum of the exponentials anyway.
        reduce_(top.name, top, over, "max_number", lambda *i: cast(x[whole(i)], dtype)),
        map_(
            terms.name,
            terms,
            lambda *i: call("exp", cast(x[i], dtype) - element(top, i)),
        ),
        reduce_(total.name, total, over, "add", lambda *i: terms[whole(i)]),
    )
    return Exponentials(top, terms, total, steps)


def _softmax(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, out = inputs[0], outputs[0]
    e = exponentials(op.name, x, _softmax_axes(op, len(x.shape)), wide_dtype(x.dtype))
    # One division per sum, not per term: the sum is between 1 and the number of terms.
    factor = Buffer(f"{op.name}_factor", e.total.shape, e.total.dtype)
    return [
        *e.steps,
        map_(factor.name, factor, lambda *i: 1.0 / e.total[i]),
        map_(op.name, out, lambda *i: cast(e.terms[i] * element(factor, i), out.dtype)),
    ]


def _log_softmax(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, out = inputs[0], outputs[0]
    e = exponentials(op.name, x, _softmax_axes(op, len(x.shape)), wide_dtype(x.dtype))

    def value(*i: Any) -> Expr:
        shifted = wide(x[i]) - element(e.top, i)
        return cast(shifted - call("log", element(e.total, i)), out.dtype)

    return [*e.steps, map_(op.name, out, value)]


def _softmax_arrays(log: bool) -> Any:
    def reference(op: OpCall, x: Array) -> list[Array]:
        axes = tuple(_softmax_axes(op, x.ndim))
        v = widened(x)
        shifted = v - np.max(v, axes, keepdims=True, initial=-np.inf)
        e = np.exp(shifted)
        total = np.sum(e, axes, keepdims=True)
        return [(shifted - np.log(total) if log else e / total).astype(x.dtype)]

    return reference


register(
    OpDef(
        "Softmax",
        _same,
        compute=_softmax,
        reference=_softmax_arrays(False),
        flops=lambda op: 5 * op.size(0),
    )
)
register(
    OpDef(
        "LogSoftmax",
        _same,
        compute=_log_softmax,
        reference=_softmax_arrays(True),
        flops=lambda op: 5 * op.size(0),
    )
)
