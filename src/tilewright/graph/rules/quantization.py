"""Quantized tensors in a graph: integers with scales, and products of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, float32, int8, int32, uint8
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.offsets import shaped
from tilewright.graph.rules.patterns import onnx

_BYTE = 255  # largest difference between two bytes, one of them a zero point
_WHOLE = 2**31 - 1
MOST_TERMS = _WHOLE // (_BYTE * _BYTE)  # largest sum that int32 holds


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A tensor of integers with its scale and zero point. axis: of a scale that is a vector."""

    whole: Value
    scale: Value
    zero: Value | None
    axis: int | None


# ------------------------------------------------------------------------------------- products


@dataclass(frozen=True, slots=True)
class ByteProduct:
    """The operands of a product of bytes, and the bias, which is real.

    terms: in one sum.
    """

    op: Operation
    left: QuantizedTensor
    right: QuantizedTensor
    bias: Value | None
    terms: int


def product_of(graph: Graph, op: Operation) -> ByteProduct | None:
    """`op` as a product of bytes.

        sum_k (s * (a[i, k] - p)) * (t[j] * (b[k, j] - q[j]))
            = s * t[j] * sum_k (a[i, k] - p) * (b[k, j] - q[j])

    Both operands are dequantized bytes; s and p are single numbers, t and q may be one per column
    or channel of the result, not per term; the sum fits int32 for any bytes; with these scales
    neither side overflows or underflows float32 (`_in_range`). For a Gemm, alpha and beta are 1 and
    a is not transposed.
    """
    left, right = (quantized_by(graph, v, (uint8, int8)) for v in op.inputs[:2])
    if left is None or right is None or left.axis is not None:
        return None
    b = right.whole.extents
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    if onnx.Conv.covers(op):
        terms = math.prod(b[1:])
    else:
        terms = left.whole.extents[-1]
    if terms > MOST_TERMS or right.axis not in (None, _columns(op, len(b))):
        return None
    if onnx.MatMul.covers(op) and min(len(left.whole.extents), len(b)) < 2:
        return None
    if onnx.Gemm.covers(op) and not _is_plain_gemm(op, bias):
        return None
    product = ByteProduct(op, left, right, bias, terms)
    return product if _in_range(graph, product) else None


def _in_range(graph: Graph, p: ByteProduct) -> bool:
    """Whether, for any bytes, s * t is a normal number and the largest sum times it is finite.

    A computed scale is assumed to come from a quantizer, which ensures this.
    """
    scales = []
    for factor in (p.left, p.right):
        known = graph.constants.get(factor.scale)
        scales.append(np.float64(1) if known is None else known.astype(np.float64))
    left, right = scales
    with np.errstate(all="ignore"):
        each = np.abs(np.multiply.outer(left, right))
        most = each * _largest(p)
    limits = np.finfo(np.float32)
    normal = each >= limits.tiny
    finite = most <= limits.max
    return bool((normal & finite).all())


def _columns(op: Operation, rank: int) -> int:
    """The axis of the second operand that corresponds to the results' columns or channels."""
    if onnx.Conv.covers(op) or (onnx.Gemm.covers(op) and op.attr("transB", 0)):
        return 0
    return rank - 1


def _is_plain_gemm(op: Operation, bias: Value | None) -> bool:
    alpha, beta = (op.attr(n, 1.0) for n in ("alpha", "beta"))
    return alpha == 1.0 and not op.attr("transA", 0) and (bias is None or beta == 1.0)


def integer_sum(p: ByteProduct, f: Fragment) -> Value:
    """The sum in int32."""
    left = p.left.whole
    right = p.right.whole
    zeros = (p.left.zero, p.right.zero)
    if onnx.Conv.covers(p.op):
        return f.op("ConvInteger", left, right, *zeros, **p.op.attributes)
    if onnx.Gemm.covers(p.op) and p.op.attr("transB", 0):
        right = f.transpose(right, 1, 0)
    return f.op("MatMulInteger", left, right, *zeros)


def along(p: ByteProduct) -> tuple[int, ...]:
    """How a parameter per column or channel broadcasts with the results."""
    if onnx.Conv.covers(p.op):
        return (-1, *[1] * (len(p.right.whole.extents) - 2))
    return (-1,)


def shaped_along(
    f: Fragment,
    x: Value,
    shape: tuple[int, ...],
) -> Value:
    """A vector of parameters in that shape; a single one is unchanged."""
    if len(x.extents) != 1 or len(shape) == 1:
        return x
    return shaped(f, x, shape)


def zero_of(
    f: Fragment,
    x: QuantizedTensor,
    dtype: DType | None,
) -> Value:
    """The zero point of `x`; zeros of that type if it has none."""
    if x.zero is None:
        return f.constant(np.zeros(x.scale.extents), dtype)
    return x.zero


def whole_bias(graph: Graph, p: ByteProduct) -> Value | None:
    """The int32 bias that was dequantized by the product's own scale.

    bias = s * t * whole, with no zero point; it is a constant, and sum + whole fits int32.
    """
    found = quantized_by(graph, p.bias, (int32,))
    if found is None or found.axis not in (None, len(found.whole.extents) - 1):
        return None
    scales = found.scale, p.left.scale, p.right.scale
    if not all(v in graph.constants for v in scales):
        return None
    if found.zero is not None and not _is_known(graph, found.zero, 0):
        return None
    whole = graph.constants.get(found.whole)
    if whole is None:
        return None
    largest = np.abs(whole.astype(np.int64)).max(initial=0)
    if largest > _WHOLE - _largest(p):
        return None
    own, left, right = (graph.constants[v].reshape(-1) for v in scales)
    if 1 not in (own.size, right.size) and own.size != right.size:
        return None
    if np.allclose(own, left * right, rtol=1e-6, atol=0):
        return found.whole
    return None


def _largest(p: ByteProduct) -> int:
    return p.terms * _BYTE * _BYTE


# ------------------------------------------------------------------------------ requantization


def quantizer(op: Operation) -> QuantizedTensor | None:
    """The result of a QuantizeLinear to bytes with one scale, if it divides in float32."""
    _, scale, zero = (*op.inputs, None)[:3]
    out = op.outputs[0]
    if scale is None or out is None or out.dtype not in (uint8, int8):
        return None
    if scale.dtype is not float32 or not scale.static or math.prod(scale.extents) != 1:
        return None
    plain = not op.attr("precision", 0) and not op.attr("block_size", 0)
    return QuantizedTensor(out, scale, zero, None) if plain else None


def clip_bounds(graph: Graph, op: Operation) -> tuple[float, float]:
    """The bounds of a Relu or Clip; NaN for an unknown one."""
    if onnx.Relu.covers(op):
        return 0.0, math.inf
    bounds = [op.attr("min", -math.inf), op.attr("max", math.inf)]
    for n, v in enumerate(op.inputs[1:3]):
        if v is not None:
            known = graph.constants.get(v)
            bounds[n] = math.nan if known is None else known.item()
    return bounds[0], bounds[1]


def same_quantization(graph: Graph, x: QuantizedTensor, q: QuantizedTensor) -> bool:
    """Whether both have the same quantization, so that a round trip changes no byte.

    round(s * (a - p) / s) + p = a: one type, one known s > 0 with 255 * s finite, one known p.
    """
    known = parameters(graph, x)
    if known is None or known != parameters(graph, q):
        return False
    return bool(0 < known[1] <= np.finfo(np.float32).max / _BYTE)


# ------------------------------------------------------------------------------------ quantities


def quantized_by(
    graph: Graph,
    value: Value | None,
    dtypes: tuple[DType, ...],
) -> QuantizedTensor | None:
    """The integers that are dequantized to `value`, with one scale or one along an axis."""
    op = None if value is None else graph.producer(value)
    if op is None or not onnx.DequantizeLinear.covers(op) or op.attr("block_size"):
        return None
    if value is None or value.dtype is not float32:  # `output_dtype` may name another
        return None
    x, scale, zero = (*op.inputs, None)[:3]
    if x is None or scale is None or not (x.static and scale.static):
        return None
    if x.dtype not in dtypes or scale.dtype is not float32 or len(scale.extents) > 1:
        return None
    if math.prod(scale.extents) == 1:
        return QuantizedTensor(x, scale, zero, None)
    return QuantizedTensor(
        x,
        scale,
        zero,
        op.attr("axis", 1) % len(x.extents),
    )


def _is_known(graph: Graph, x: Value, number: int) -> bool:
    known = graph.constants.get(x)
    return known is not None and bool((known == number).all())


def parameters(
    graph: Graph, x: QuantizedTensor
) -> tuple[DType, np.float32, int] | None:
    """The type, scale and zero point of bytes, if they are known and single numbers."""
    scale = graph.constants.get(x.scale)
    zero: np.ndarray[Any, Any] | None = np.zeros(1)
    if x.zero is not None:
        zero = graph.constants.get(x.zero)
    if scale is None or zero is None or scale.size != 1:
        return None
    assert x.whole.dtype is not None
    return x.whole.dtype, np.float32(scale.item()), int(zero.item())
