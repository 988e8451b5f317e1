"""Convolutions of bfloat16, summed in float32, for machines that multiply pairs of it.

    Conv(x, w, b)  =  MixedConv(bfloat16(x), bfloat16(w), b)

Pairs are products of neighboring channels, or of the elements of a window. Used only on request.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtypes import bfloat16, float32
from tilewright.graph.nodes import Value
from tilewright.graph.ops.conv import MIXED
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.lower_precision import stored
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import constants, maybe, onnx, tensors
from tilewright.graph.rules.rule import Rule, Sample

(x,) = tensors("x")
w, bias = constants("w bias")
conv = onnx.Conv(x, w, maybe(bias)).with_attributes()

# With fewer channels to sum or to make, vectors of pairs are partly empty: on a Zen 4, groups of 16
# take 0.7 of float32's time, of 8 2.9 times as long; 3 channels with windows of 7x7 take 0.7.
LEAST = 16
DEEP = 128  # elements of a window


def _of_floats(m: Match) -> bool:
    """float32, of known extents"""
    floats = m[x].dtype is float32 and m[w].dtype is float32
    return floats and m[x].static


def _of_many(m: Match) -> bool:
    """at least 16 outputs and 16 channels of a group; or windows of 128 elements of all channels"""
    made, channels, *kernel = m.array(w).shape
    groups = m.root.attr("group", 1)
    deep = groups == 1 and channels * math.prod(kernel) >= DEEP
    return bool(made // groups >= LEAST and (channels >= LEAST or deep))


def _lower(m: Match, f: Fragment) -> Value:
    """a convolution in bfloat16"""
    weights = f.constant(stored(m, m[w], m.array(w), bfloat16))
    inputs = [f.cast(m[x], bfloat16), weights, m.get(bias)]
    how = m.root.attributes
    return f.ops(MIXED, *inputs, domain="tilewright", count=1, **how)[0]


def _samples(rng: np.random.Generator) -> Sample:
    """Integers whose sums bfloat16 represents exactly."""

    def few(*shape: int) -> NDArray[np.float32]:
        return rng.integers(-1, 2, shape).astype(np.float32)

    return {
        x: few(1, 16, 5, 5),
        w: few(16, 16, 3, 3),
        bias: few(16) if rng.integers(2) else None,
    }


CONVOLUTION = Rule(
    "convolution-of-bfloat16",
    conv,
    _lower,
    when=[_of_floats, _of_many],
    exact=False,
    samples=_samples,
)
