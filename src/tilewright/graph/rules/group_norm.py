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
from tilewright.graph.ops.terms import TensorTerm
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import Attribute, constants, onnx, tensors
from tilewright.graph.rules.rule import Rule, Sample, normals

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
    rows = count == n and len(rest) == 1
    return rows and groups > 0 and channels % groups == 0


def _wide(m: Match) -> bool:
    """x is float32 or float64: the operator computes narrower ones in float32"""
    return m[x].dtype in (float32, float64)


def _neutral(m: Match) -> bool:
    """the scale is 1 and the bias 0"""
    ones = m.array(scale) == 1
    zeros = m.array(bias) == 0
    return bool(ones.all() and zeros.all())


def _by_channels(m: Match, f: Fragment) -> Value:
    """(x - mean) / sqrt(variance + epsilon), with the sums of each channel"""
    n, channels, *spatial = m[x].extents
    groups = len(m.array(scale))
    split = (n, groups, channels // groups)
    ones = [1] * len(spatial)
    axes = f.ints(*range(2, 2 + len(spatial)))
    size = math.prod(spatial) * (channels // groups)
    count = f.constant(size, m[x].dtype)

    def mean(of: TensorTerm) -> TensorTerm:
        """The mean of each group, for each of its channels."""
        sums = of.op("ReduceSum", axes, keepdims=1).value
        sums = f.reshape(sums, *split)
        total = f.op("ReduceSum", sums, f.ints(2), keepdims=1)
        # Divided last: what the image is combined with is then a number per channel in memory.
        wide = f.op("Expand", total, f.ints(*split))
        wide = f.reshape(wide, n, channels, *ones)
        return f.term(wide) / count

    image = f.term(m[x])
    center = mean(image)
    # A difference for each reader: it is cheaper than another tensor of the size of x.
    first, second = (image - center for _ in range(2))
    variance = mean(first * first)
    offset: float = m.attribute(epsilon)
    deviation = (variance + offset).op("Sqrt")
    return (second * deviation.op("Reciprocal")).value


def _samples(rng: np.random.Generator) -> Sample:
    rank = int(rng.integers(1, 3))
    groups = int(rng.integers(1, 4))
    channels = groups * int(rng.integers(1, 4))
    extents: Any = (2, channels, *rng.integers(1, 4, rank))
    return {
        x: normals(rng, *extents),
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
