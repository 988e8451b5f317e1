"""Products of int8 by int8 as products of uint8 by int8, for targets that multiply only these.

    sum a * b  =  sum (a + 128) * b  -  128 * sum b

in int32, which wraps around, so both sides are exactly equal. For constant `b` the last term is a
constant, which is added to the bias at compile time.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.dtypes import int8, int32
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.integer import on_unsigned
from tilewright.graph.ops.registry import OpCall
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import constants, one_of, onnx, tensors
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication

a, b, x = tensors("a b x")
c, d = constants("c d")
product = one_of(onnx.MatMulInteger, onnx.ConvInteger)(a, b).with_attributes()


def _signed(m: Match) -> bool:
    """both factors are int8"""
    return m[a].dtype is int8 and m[b].dtype is int8


def _on_unsigned(m: Match, f: Fragment) -> Value:
    """a product of uint8 by int8"""
    return on_unsigned(OpCall(m.root, f.known), f)


def _whole(m: Match) -> bool:
    """they are int32, and x is not a constant

    Integers wrap around, so that their sums may be done in any order.
    """
    return m.result.dtype is int32 and m.known(x) is None


_PADDED = {
    "pads": [1, 0, 0, 1],
    "group": 2,
}


def _product_samples(rng: np.random.Generator) -> Sample:
    left: tuple[int, ...] = (2, 4, 6)
    right: tuple[int, ...] = (6, 5)
    given = SampleApplication({}, operator=onnx.MatMulInteger)
    if rng.integers(2):
        left, right = (2, 4, 5, 5), (4, 2, 3, 3)
        given = SampleApplication(_PADDED, operator=onnx.ConvInteger)
    return {
        a: rng.integers(-128, 128, left).astype(np.int8),
        b: rng.integers(-128, 128, right).astype(np.int8),
        product: given,
    }


def _sum_samples(rng: np.random.Generator) -> Sample:
    numbers = rng.integers(-(2**31), 2**31, (2, 3, 4))
    one, other = numbers.astype(np.int32)
    return {
        x: Value("x", int32, (3, 4)),
        c: one[0],
        d: other[:, :1],
    }


UNSIGNED_DATA = Rule(
    "unsigned-data", product, _on_unsigned, when=[_signed], samples=_product_samples
)
CONSTANTS_ONCE = Rule(
    "constants-once",
    onnx.Add(onnx.Add(x, c).once(), d),
    onnx.Add(x, onnx.Add(c, d)),
    when=[_whole],
    samples=_sum_samples,
)
