"""Convolutions with few output positions as matrix products.

    Conv(x, w)  =  Transpose(MatMul(w, Im2Col(x)))        w as a matrix [m, c * kernel]

Weights that a training step changes cannot be packed in advance. If the result has no more
positions than channels, the columns are no larger than the weights. The product and its two
derivatives, which are products as well, then read the weights once and in order.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.base.dtypes import float32, float64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import extents, reshaped
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.im2col import DOMAIN, IM2COL
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import maybe, onnx, tensors
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication

x, w, b = tensors("x w b")
conv = onnx.Conv(x, w, maybe(b)).with_attributes()
_GEOMETRY = ("strides", "dilations", "pads", "auto_pad")


def _of_all_channels(m: Match) -> bool:
    """one group, float32 or float64, known shapes"""
    known = m[x].static and m[w].static and m.result.static
    one_group = m.root.attr("group", 1) == 1
    return known and one_group and m[x].dtype in (float32, float64)


def _not_packed(m: Match) -> bool:
    """w is not a constant"""
    return m[w] not in m.graph.constants


def _of_few_positions(m: Match) -> bool:
    """no more positions than channels of the result"""
    n, channels, *spatial = m.result.extents
    return 0 < n * math.prod(spatial) <= channels


def _product(m: Match, f: Fragment) -> Value:
    """Transpose(MatMul(w, Im2Col(x)))"""
    n, channels, *spatial = extents(m.result)
    kernel = extents(m[w])[2:]
    given = m.root.attributes
    how = {name: given[name] for name in _GEOMETRY if name in given}
    [columns] = f.ops(
        IM2COL, m[x], domain=DOMAIN, version=1, count=1, kernel_shape=kernel, **how
    )
    depth = math.prod(extents(m[w])[1:])
    matrix = reshaped(f, m[w], (channels, depth))
    y = f.op("MatMul", matrix, reshaped(f, columns, (depth, n * math.prod(spatial))))
    y = reshaped(f, y, (channels, n, *spatial))
    y = f.transpose(y, 1, 0, *range(2, 2 + len(spatial)))
    bias = m.get(b)
    if bias is None:
        return y
    return f.op("Add", y, reshaped(f, bias, (channels, *(1 for _ in spatial))))


def _samples(rng: np.random.Generator) -> Sample:
    stride, dilation = (int(v) for v in rng.integers(1, 3, 2))
    how = {"strides": [stride, 1], "dilations": [1, dilation], "pads": [1, 0, 2, 1]}
    n = int(rng.integers(1, 3))
    return {
        x: Value("x", float32, (n, 3, 4, 4)),
        w: Value("w", float32, (40, 3, 3, 2)),
        b: Value("b", float32, (40,)) if rng.random() < 0.5 else None,
        conv: SampleApplication(how),
    }


CONV_PRODUCT = Rule(
    "conv-of-few-positions-as-product",
    conv,
    _product,
    when=[_of_all_channels, _not_packed, _of_few_positions],
    exact=False,
    samples=_samples,
)
