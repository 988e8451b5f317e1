"""GroupNormalization: each group of channels as a row of an InstanceNormalization.

ONNX defines it as a function whose variance is the difference of two means. In float32 that cancels
where the mean is large: with a mean of 1000 deviations of 1 were lost. The variance is the mean of
squared deviations here.

Before version 21 there is a scale and a bias for each group, and later for each channel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import widened
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

_EPSILON = 1e-5
_PER_CHANNEL = 21  # the version


def _per_group(op: OpCall) -> bool:
    return op.version < _PER_CHANNEL


def _type(op: OpCall) -> Sequence[Type]:
    shape = op.shape(0)
    groups = op.attr("num_groups", 0)
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        raise op.error(f"num_groups={groups} does not divide axis 1 of {list(shape)}")
    count = groups if _per_group(op) else shape[1]
    for i, name in enumerate(("scale", "bias"), start=1):
        found = list(op.shape(i))
        if found != [count]:
            raise op.error(f"{name} has the shape {found}, expected {[count]}")
    return op.result(shape)


def _by_rows(op: OpCall, f: Fragment) -> Sequence[Value] | None:
    """Normalize the rows of the groups; scale and shift the groups or the channels."""
    n, channels, *spatial = op.shape(0)
    if 0 in op.shape(0):
        return [f.op("Identity", op.value(0))]
    groups = op.attr("num_groups", 0)
    rows = f.reshape(op.value(0), n, groups, -1)
    given = (op.value(1), op.value(2))
    ones = f.constant(np.ones(groups), op.dtype(0))
    zeros = f.constant(np.zeros(groups), op.dtype(0))
    of_rows = given if _per_group(op) else (ones, zeros)
    epsilon = op.attr("epsilon", _EPSILON)
    normal = f.op("InstanceNormalization", rows, *of_rows, epsilon=epsilon)
    image = f.reshape(normal, n, channels, *spatial)
    if _per_group(op):
        return [image]
    by_channel = (channels, *[1] * len(spatial))
    scale, bias = (f.reshape(v, *by_channel) for v in given)
    y = f.term(image) * scale + bias
    return [y.value]


def _arrays(op: OpCall, x: Array, scale: Array, bias: Array) -> list[Array]:
    n, channels = x.shape[:2]
    groups = op.attr("num_groups", 0)
    if not x.size:
        return [x]
    if _per_group(op):
        scale, bias = (np.repeat(a, channels // groups) for a in (scale, bias))
    rows = widened(x).reshape(n, groups, -1)
    root = np.sqrt(rows.var(2, keepdims=True) + op.attr("epsilon", _EPSILON))
    centered = rows - rows.mean(2, keepdims=True)
    normal = (centered / root).reshape(x.shape)
    by_channel = (channels, *(1,) * (x.ndim - 2))
    y = normal.astype(x.dtype) * scale.reshape(by_channel) + bias.reshape(by_channel)
    return [y.astype(x.dtype)]


register(
    OpDef(
        "GroupNormalization",
        _type,
        since=18,
        decompose=_by_rows,
        reference=_arrays,
        flops=lambda op: 8 * op.size(0),
    )
)
