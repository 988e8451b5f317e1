"""Operators between DequantizeLinear and QuantizeLinear, as quantizers write them, on bytes.

    DequantizeLinear(a, s, p) @ DequantizeLinear(b, t, q)  =  s * t * MatMulInteger(a, b, p, q)

exact in int32, whereas the left side rounds at each step. Requantized, that is QLinearMatMul, and
likewise for convolutions: one factor s * t / u instead of a product and a quotient. Operators that
move or select elements do the same to bytes if the quantization before and after is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtypes import float32, int8, uint8
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.integer import requantized
from tilewright.graph.ops.traits import MOVES_DATA, SELECTS
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Apply,
    Tensor,
    having,
    maybe,
    one_of,
    onnx,
    tensors,
)
from tilewright.graph.rules.quantization import (
    along,
    clip_bounds,
    integer_sum,
    parameters,
    product_of,
    quantized_by,
    quantizer,
    same_quantization,
    shaped_along,
    whole_bias,
    zero_of,
)
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication, normals

x, x_scale, x_zero, y_scale, y_zero, real, bias = tensors(
    "x x_scale x_zero y_scale y_zero real bias"
)
a, a_scale, a_zero, b, b_scale, b_zero = tensors("a a_scale a_zero b b_scale b_zero")


def _dequantized(whole: Tensor, scale: Tensor, zero: Tensor) -> Apply:
    return onnx.DequantizeLinear(whole, scale, maybe(zero)).with_attributes()


def _quantized(part: Any) -> Apply:
    return onnx.QuantizeLinear(part, y_scale, maybe(y_zero)).with_attributes()


dequantized = _dequantized(x, x_scale, x_zero)
selected = having(MOVES_DATA | SELECTS)(dequantized, ...).with_attributes()
clipped = one_of(onnx.Relu, onnx.Clip)(real, ...).with_attributes().once()
unclipped = _quantized(clipped)
factors = (
    _dequantized(a, a_scale, a_zero),
    _dequantized(b, b_scale, b_zero),
    maybe(bias),
)
product = one_of(onnx.MatMul, onnx.Gemm, onnx.Conv)(*factors).with_attributes()
inner = product.once()


def _as_before(m: Match) -> bool:
    """both have the same quantization

    select(s * (a - p)) = s * (select(a) - p), as the factor is positive and keeps order; the
    quantization after it is the same (`_same`).
    """
    q = quantizer(m.root)
    made = m.operation(dequantized)
    x = quantized_by(m.graph, made.outputs[0], (uint8, int8))
    return q is not None and x is not None and same_quantization(m.graph, x, q)


def _elements_alone(m: Match) -> bool:
    """only the elements are used"""
    return len(m.operation(selected).writes) == 1


def _saturates(m: Match) -> bool:
    """the clipped values saturate

    round(low / s) + p <= the least byte and round(high / s) + p >= the largest. Bounds and
    quantization are known, and nothing else reads what was clipped.
    """
    q = quantizer(m.root)
    known = None if q is None else parameters(m.graph, q)
    if known is None:
        return False
    dtype, step, zero_point = known
    bounds = clip_bounds(m.graph, m.operation(clipped))
    with np.errstate(all="ignore"):
        ends = [np.rint(np.float32(b) / step) + zero_point for b in bounds]
    return bool(ends[0] <= dtype.min and ends[1] >= dtype.max)


def _real_product(m: Match, f: Fragment) -> Value | None:
    """a product of integers times the scales, and the bias"""
    p = product_of(m.graph, m.root)
    if p is None:
        return None
    shape = along(p)
    scale = f.op("Mul", p.left.scale, shaped_along(f, p.right.scale, shape))
    total = f.cast(integer_sum(p, f), float32)
    real = f.op("Mul", total, scale)
    if p.bias is None:
        return real
    return f.op("Add", real, shaped_along(f, p.bias, shape))


def _product_in_bytes(m: Match, f: Fragment) -> Value | None:
    """a product of bytes, quantized

    None if the bias is not an int32 one with the product's scale.
    """
    graph = m.graph
    q = quantizer(m.root)
    p = product_of(m.graph, m.operation(inner))
    if p is None or q is None:
        return None
    bias = None if p.bias is None else whole_bias(graph, p)
    if bias is None and p.bias is not None:
        return None
    sides = [
        (s.whole, s.scale, zero_of(f, s, s.whole.dtype)) for s in (p.left, p.right)
    ]
    result = q.scale, zero_of(f, q, q.whole.dtype)
    if onnx.Conv.covers(p.op):
        operands = (*sides[0], *sides[1], *result, bias)
        return f.op("QLinearConv", *operands, **p.op.attributes)
    if onnx.MatMul.covers(p.op):
        return f.op("QLinearMatMul", *sides[0], *sides[1], *result)
    if bias is None:
        total = integer_sum(p, f)
    else:
        total = f.op("Add", integer_sum(p, f), bias)
    return requantized(f, total, p.left.scale, p.right.scale, *result)


# ---------------------------------------------------------------------------------------- samples


def _bytes(rng: np.random.Generator, kind: Any, *shape: int) -> Any:
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max + 1, shape).astype(kind)


_SELECTIONS = (
    SampleApplication({"perm": [0, 2, 1, 3]}, operator=onnx.Transpose),
    SampleApplication({"kernel_shape": [2, 2]}, operator=onnx.MaxPool),
    SampleApplication({"axis": 2}, operator=onnx.Flatten),
    SampleApplication({}, (np.array([3, -1]),), onnx.Reshape),
    SampleApplication({"axis": 1}, (np.array([2, 0]),), onnx.Gather),
)
_CLIPS = (
    SampleApplication({}, (), onnx.Relu),
    SampleApplication({}, (np.float32(0), np.float32(100)), onnx.Clip),
)


def _selection_samples(rng: np.random.Generator) -> Sample:
    kind = (np.uint8, np.int8)[int(rng.integers(2))]
    scale = np.float32(rng.uniform(0.1, 1))
    zero = kind(9)
    return {
        x: _bytes(rng, kind, 2, 3, 4, 4),
        x_scale: scale,
        y_scale: scale,
        x_zero: zero,
        y_zero: zero,
        selected: _SELECTIONS[int(rng.integers(len(_SELECTIONS)))],
    }


def _clip_samples(rng: np.random.Generator) -> Sample:
    return {
        real: 9 * normals(rng, 3, 4),
        y_scale: np.float32(rng.uniform(0.05, 0.2)),
        y_zero: np.uint8(0),
        clipped: _CLIPS[int(rng.integers(len(_CLIPS)))],
    }


_PRODUCTS = (
    (SampleApplication({}, (), onnx.MatMul), (4, 6), (6, 5), None),
    (SampleApplication({}, (), onnx.Gemm), (4, 6), (6, 5), (5,)),
    (SampleApplication({"transB": 1}, (), onnx.Gemm), (4, 6), (5, 6), (5,)),
    (
        SampleApplication({"pads": [1, 0, 0, 1]}, (), onnx.Conv),
        (2, 3, 5, 5),
        (4, 3, 3, 3),
        (4,),
    ),
)


def _product_samples(rng: np.random.Generator) -> Sample:
    given, left, right, added = _PRODUCTS[int(rng.integers(len(_PRODUCTS)))]
    return {
        a: _bytes(rng, np.uint8, *left),
        b: _bytes(rng, np.int8, *right),
        a_scale: np.float32(rng.uniform(0.01, 0.1)),
        b_scale: np.float32(rng.uniform(0.01, 0.1)),
        a_zero: np.uint8(rng.integers(256)),
        b_zero: np.int8(0),
        bias: None if added is None else normals(rng, *added),
        product: given,
        y_scale: np.float32(rng.uniform(0.5, 1)),
        y_zero: np.uint8(128),
    }


def _inner_samples(rng: np.random.Generator) -> Sample:
    found = {**_product_samples(rng)}
    return {**found, bias: None, inner: found[product]}


QUANTIZED = (
    Rule(
        "quantized-again",
        _quantized(dequantized),
        x,
        when=[_as_before],
        samples=_selection_samples,
    ),
    Rule(
        "selection-of-bytes",
        _quantized(selected),
        selected.on(x),
        when=[_as_before, _elements_alone],
        samples=_selection_samples,
    ),
    Rule(
        "clipped-by-quantizing",
        unclipped,
        unclipped.on(real),
        when=[_saturates],
        samples=_clip_samples,
    ),
    Rule(
        "product-in-bytes",
        _quantized(inner),
        _product_in_bytes,
        exact=False,
        samples=_inner_samples,
    ),
)
PRODUCTS = (
    Rule(
        "product-of-bytes",
        product,
        _real_product,
        exact=False,
        samples=_product_samples,
    ),
)
