"""Group normalization by sums per channel.

    Reshape(InstanceNormalization(Reshape(x, [n, groups, -1]), 1, 0), x's shape)

is how exporters write group normalization without its scale and bias. The reshaped tensor splits
the channels, so that a convolution before it would compute vectors of a group's channels, of which
there may be two. Here x keeps its shape: each channel is summed, and only the sums are grouped.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32, float64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import Attribute, constants, onnx, tensors
from tilewright.graph.rules.rule import Rule, Sample

(x,) = tensors("x")
grouping, shape, scale, bias = constants("grouping shape scale bias")
epsilon = Attribute("epsilon", default=1e-5)
grouped = onnx.Reshape(x, grouping).with_attributes().once()
normal = onnx.InstanceNormalization(grouped, scale, bias, epsilon=epsilon).once()
whole = onnx.Reshape(normal, shape).with_attributes()


def _whole_channels(m: Match) -> bool:
    """each group has as many whole channels of one image, of known shape"""
    image = m.operation(normal).inputs[0]
    assert image is not None
    if not m[x].static or len(m[x].extents) < 3:
        return False
    n, channels, *_ = m[x].extents
    count, groups, *rest = image.extents
    return count == n and len(rest) == 1 and groups > 0 and channels % groups == 0


def _wide(m: Match) -> bool:
    """x is float32 or float64: the operator computes narrower ones in float32"""
    return m[x].dtype in (float32, float64)


def _neutral(m: Match) -> bool:
    """the scale is 1 and the bias 0"""
    return bool((m.array(scale) == 1).all() and (m.array(bias) == 0).all())


def _by_channels(m: Match, f: Fragment) -> Value:
    """(x - mean) / sqrt(variance + epsilon), with the sums of each channel"""
    n, channels, *spatial = m[x].extents
    groups = len(m.array(scale))
    split = (n, groups, channels // groups)
    ones = [1] * len(spatial)
    axes = f.ints(*range(2, 2 + len(spatial)))
    size = math.prod(spatial) * (channels // groups)
    count = f.constant(size, m[x].dtype)

    def mean(of: Value) -> Value:
        """The mean of each group, for each of its channels."""
        sums = f.op("ReduceSum", of, axes, keepdims=1)
        sums = f.reshape(sums, *split)
        total = f.op("ReduceSum", sums, f.ints(2), keepdims=1)
        # Divided last: what the image is combined with is then a number per channel in memory.
        wide = f.op("Expand", total, f.ints(*split))
        wide = f.reshape(wide, n, channels, *ones)
        return f.op("Div", wide, count)

    center = mean(m[x])
    # A difference for each reader: it is cheaper than another tensor of the size of x.
    first, second = (f.op("Sub", m[x], center) for _ in range(2))
    variance = mean(f.op("Mul", first, first))
    offset = f.constant(m.attribute(epsilon), m[x].dtype)
    deviation = f.op("Sqrt", f.op("Add", variance, offset))
    return f.op("Mul", second, f.op("Reciprocal", deviation))


def _samples(rng: np.random.Generator) -> Sample:
    rank = int(rng.integers(1, 3))
    groups = int(rng.integers(1, 4))
    extents: Any = (2, groups * int(rng.integers(1, 4)), *rng.integers(1, 4, rank))
    return {
        x: rng.standard_normal(extents).astype(np.float32),
        grouping: np.array([2, groups, -1]),
        shape: np.array(extents),
        scale: np.ones(groups, np.float32),
        bias: np.zeros(groups, np.float32),
    }


GROUP_NORM = Rule(
    "group-norm-by-channels",
    whole,
    _by_channels,
    when=[_wide, _whole_channels, _neutral],
    exact=False,
    samples=_samples,
)
