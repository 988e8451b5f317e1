"""GroupNormalization: each group of channels as a row of an InstanceNormalization.

ONNX defines it as a function whose variance is the difference of two means. In float32 that cancels
where the mean is large: with a mean of 1000 deviations of 1 were lost. The variance is the mean of
squared deviations here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import widened
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.norm import check_channels
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

_EPSILON = 1e-5


def _type(op: OpCall) -> Sequence[Type]:
    shape = op.shape(0)
    groups = op.attr("num_groups", 0)
    check_channels(op, "scale", "bias")
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        raise op.error(f"num_groups={groups} does not divide axis 1 of {list(shape)}")
    return op.result(shape)


def _by_rows(op: OpCall, f: Fragment) -> Sequence[Value] | None:
    """Normalize the rows of the groups; scale and shift the channels."""
    n, channels, *spatial = op.shape(0)
    if 0 in op.shape(0):
        return [f.op("Identity", op.value(0))]
    groups = op.attr("num_groups", 0)
    rows = f.reshape(op.value(0), n, groups, -1)
    ones = f.constant(np.ones(groups), op.dtype(0))
    zeros = f.constant(np.zeros(groups), op.dtype(0))
    epsilon = op.attr("epsilon", _EPSILON)
    normal = f.op("InstanceNormalization", rows, ones, zeros, epsilon=epsilon)
    image = f.reshape(normal, n, channels, *spatial)
    by_channel = (channels, *[1] * len(spatial))
    scale, bias = (f.reshape(op.value(i), *by_channel) for i in (1, 2))
    y = f.term(image) * scale + bias
    return [y.value]


def _arrays(op: OpCall, x: Array, scale: Array, bias: Array) -> list[Array]:
    n, channels = x.shape[:2]
    if not x.size:
        return [x]
    rows = widened(x).reshape(n, op.attr("num_groups", 0), -1)
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
        since=21,
        decompose=_by_rows,
        reference=_arrays,
        flops=lambda op: 8 * op.size(0),
    )
)
