"""Products of float8 tensors as they are, for targets that multiply these.

float32(a) @ float32(b)  =  the product of a and b, summed in float32
"""

from __future__ import annotations

import numpy as np

from tilewright.base.dtypes import float8_e4m3fn, float8_e5m2, float32
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.matmul import MIXED
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import onnx, tensors
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication

_TYPES = [float8_e4m3fn, float8_e5m2]

a, b = tensors("a b")
left = onnx.Cast(a).with_attributes()
right = onnx.Cast(b).with_attributes()


def _of_eight_bits(m: Match) -> bool:
    """both are float8_e4m3fn or float8_e5m2, and their product is in float32"""
    factors = m[a].dtype, m[b].dtype
    narrow = all(of in _TYPES for of in factors)
    return narrow and m.result.dtype is float32


def _product(m: Match, f: Fragment) -> Value:
    """the product of a and b in float32"""
    (made,) = f.ops(MIXED, m[a], m[b], domain="tilewright")
    return made


def _samples(rng: np.random.Generator) -> Sample:
    one, other = _TYPES[:: rng.choice([1, -1])]
    to = number_of("float32")
    wide = SampleApplication({"to": to})
    rows = rng.standard_normal((2, 3, 4))
    columns = rng.standard_normal((4, 5))
    return {
        a: rows.astype(one.numpy),
        b: columns.astype(other.numpy),
        left: wide,
        right: wide,
    }


EIGHT_BITS = Rule(
    "product-of-float8",
    onnx.MatMul(left, right),
    _product,
    when=[_of_eight_bits],
    samples=_samples,
)
