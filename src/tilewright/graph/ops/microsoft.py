"""Operators of the domain com.microsoft that exported transformers use, by ONNX's own operators.

Each is a decomposition, so that it is folded, fused and compiled as if the model had been written
that way. A use with an operand that is not covered is left as it is (and reported as unsupported).
Source of the meanings: ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import broadcast
from tilewright.graph.ops.casts import number_of
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.matmul import matmul_shape
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

DOMAIN = "com.microsoft"
Decompose = Callable[[OpCall, Fragment], Sequence[Value] | None]


def _same(call: OpCall) -> Sequence[Type]:
    return [(call.dtype(0), call.shape(0))]


def _define(name: str, decompose: Decompose, infer: Any = _same, domain: str = DOMAIN) -> None:
    register(OpDef(name, infer, domain, decompose=decompose))


def _optional(call: OpCall, i: int) -> Value | None:
    return call.value(i) if call.has(i) else None


def _scalar(call: OpCall, f: Fragment, number: float) -> Value:
    return f.constant(number, call.dtype(0))


# ---------------------------------------------------------------------------------- activations


def _fast_gelu(call: OpCall, f: Fragment) -> Sequence[Value]:
    x = call.value(0)
    x = f.op("Add", x, call.value(1)) if call.has(1) else x
    return [f.op("Gelu", x, approximate="tanh")]


def _bias_gelu(call: OpCall, f: Fragment) -> Sequence[Value]:
    return [f.op("Gelu", f.op("Add", call.value(0), call.value(1)))]


def _quick_gelu(call: OpCall, f: Fragment) -> Sequence[Value]:
    x = call.value(0)
    alpha = _scalar(call, f, call.attr("alpha", 1.702))
    return [f.op("Mul", x, f.op("Sigmoid", f.op("Mul", x, alpha)))]


_define("Gelu", lambda call, f: [f.op("Gelu", call.value(0))])
_define("FastGelu", _fast_gelu)
_define("BiasGelu", _bias_gelu)
_define("QuickGelu", _quick_gelu)


# ------------------------------------------------------------------------------ normalisations


def _rms(call: OpCall, f: Fragment, x: Value, scale: Value) -> Value:
    options = {"axis": call.attr("axis", -1), "epsilon": call.attr("epsilon", 1e-5)}
    return f.op("RMSNormalization", x, scale, version=23, **options)


def _simplified(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    if call.wants(1):
        return None
    return [_rms(call, f, call.value(0), call.value(1))]


def _skip(call: OpCall, f: Fragment, bias: int) -> Value:
    """input + skip, and the bias where it is given."""
    total = f.op("Add", call.value(0), call.value(1))
    return f.op("Add", total, call.value(bias)) if call.has(bias) else total


def _skip_layer_norm(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: input, skip, gamma, beta, bias; outputs: y, mean, inverse deviation, sum."""
    if call.wants(1) or call.wants(2):
        return None
    total = _skip(call, f, 4)
    options = {"axis": -1, "epsilon": call.attr("epsilon", 1e-12)}
    beta = _optional(call, 3)
    y = f.op("LayerNormalization", total, call.value(2), beta, **options)
    return [y, total, total, total]


def _skip_simplified(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: input, skip, gamma, bias; outputs: y, mean, inverse deviation, sum."""
    if call.wants(1) or call.wants(2):
        return None
    total = _skip(call, f, 3)
    return [_rms(call, f, total, call.value(2)), total, total, total]


def _four(call: OpCall) -> Sequence[Type]:
    return [(call.dtype(0), call.shape(0))] * 4


_define("SkipLayerNormalization", _skip_layer_norm, _four)
_define("SkipSimplifiedLayerNormalization", _skip_simplified, _four)
_define("SimplifiedLayerNormalization", _simplified, _four)
_define("SimplifiedLayerNormalization", _simplified, _four, domain="")


# ------------------------------------------------------------------------------------- products


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _fused_matmul(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    if call.attr("transBatchA", 0) or call.attr("transBatchB", 0):
        return None
    a, b = call.value(0), call.value(1)
    if call.attr("transA", 0):
        a = f.op("Transpose", a, perm=_swapped(call.rank(0)))
    if call.attr("transB", 0):
        b = f.op("Transpose", b, perm=_swapped(call.rank(1)))
    alpha = call.attr("alpha", 1.0)
    y = f.op("MatMul", a, b)
    return [y if alpha == 1.0 else f.op("Mul", y, _scalar(call, f, alpha))]


def _fused_type(call: OpCall) -> Sequence[Type]:
    shapes = [list(call.shape(n)) for n in (0, 1)]
    for n, name in enumerate(("transA", "transB")):
        if call.attr(name, 0):
            shapes[n][-2:] = shapes[n][:-3:-1]
    return [(call.dtype(0), matmul_shape(call, tuple(shapes[0]), tuple(shapes[1])))]


def _nbits(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """x @ W^T with W (N, K) packed in blocks of a row, low bits first, a scale per block."""
    bits, block = call.attr("bits", 4), call.attr("block_size")
    rows, columns = call.attr("N"), call.attr("K")
    packed, scales = call.constant(1), call.constant(2)
    zeros = call.constant(3) if call.has(3) else None
    if packed is None or scales is None or (call.has(3) and zeros is None) or call.has(4):
        return None
    if bits not in (2, 4, 8) or (zeros is not None and zeros.dtype != np.uint8):
        return None
    blocks = -(-columns // block)
    q = _unpacked(packed.reshape(rows, -1), bits).reshape(rows, blocks, block)
    zero: Any = 1 << (bits - 1)
    if zeros is not None:
        zero = _unpacked(zeros.reshape(rows, -1), bits)[:, :blocks, None]
    weights = (q.astype(np.float32) - zero) * scales.reshape(rows, blocks, 1).astype(np.float32)
    w = weights.reshape(rows, -1)[:, :columns].T
    y = f.op("MatMul", call.value(0), f.constant(np.ascontiguousarray(w), call.dtype(0)))
    return [f.op("Add", y, call.value(5)) if call.has(5) else y]


def _unpacked(packed: Any, bits: int) -> Any:
    """Each byte as 8 / bits numbers, low bits first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


_define("FusedMatMul", _fused_matmul, _fused_type)
_define(
    "MatMulNBits",
    _nbits,
    lambda call: [(call.dtype(0), (*call.shape(0)[:-1], call.attr("N")))],
)


# ----------------------------------------------------------------------------------- quantised


def _quantised(op_type: str) -> Decompose:
    """inputs: A, its scale and zero point, B, its scale and zero point, those of the result."""

    def decompose(call: OpCall, f: Fragment) -> Sequence[Value]:
        parts = [
            f.op("DequantizeLinear", call.value(n), call.value(n + 1), _optional(call, n + 2))
            for n in (0, 3)
        ]
        y = f.op(op_type, *parts)
        return [f.op("QuantizeLinear", y, call.value(6), _optional(call, 7))]

    return decompose


def _broadcast_type(call: OpCall) -> Sequence[Type]:
    return [(call.dtype(0), broadcast(call, call.shape(0), call.shape(3)))]


_define("QLinearAdd", _quantised("Add"), _broadcast_type)
_define("QLinearMul", _quantised("Mul"), _broadcast_type)


# ------------------------------------------------------------------------------------ attention


def _heads(call: OpCall, f: Fragment, x: Value, count: int) -> Value:
    """(batch, length, hidden) as (batch, heads, length, size)."""
    batch, length, hidden = x.extents
    shape = f.constant([batch, length, count, hidden // count], int64)
    return f.op("Transpose", f.op("Reshape", x, shape), perm=[0, 2, 1, 3])


def _attend(call: OpCall, f: Fragment, q: Value, k: Value, v: Value, mask: Value | None) -> Value:
    """softmax(q k^T * scale + mask) v for (batch, heads, length, size), heads merged after."""
    scale = call.attr("scale", 0.0) or 1 / math.sqrt(q.extents[-1])
    scores = f.op("MatMul", q, f.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = f.op("Mul", scores, f.constant(scale, call.dtype(0)))
    if mask is not None:
        scores = f.op("Add", scores, mask)
    if call.attr("unidirectional", 0):
        scores = f.op("Add", scores, _causal(call, f, q.extents[2], k.extents[2]))
    y = f.op("MatMul", f.op("Softmax", scores, axis=-1), v)
    batch, heads, length, size = y.extents
    merged = f.constant([batch, length, heads * size], int64)
    return f.op("Reshape", f.op("Transpose", y, perm=[0, 2, 1, 3]), merged)


def _causal(call: OpCall, f: Fragment, rows: int, columns: int) -> Value:
    seen = np.tril(np.ones((rows, columns), bool), columns - rows)
    low = call.attr("mask_filter_value", -10000.0)
    return f.constant(np.where(seen, 0.0, low), call.dtype(0))


def _padding(call: OpCall, f: Fragment, mask: Value | None) -> Value | None:
    """A (batch, length) mask of 0 and 1 as what is added to the scores."""
    if mask is None:
        return None
    batch, length = mask.extents
    low = call.attr("mask_filter_value", -10000.0)
    real = f.op("Cast", mask, to=number_of("float32"))
    hidden = f.op("Sub", f.constant(np.float32(1)), real)
    added = f.op("Mul", hidden, f.constant(np.float32(low)))
    wide = f.op("Reshape", added, f.constant([batch, 1, 1, length], int64))
    return f.op("CastLike", wide, call.value(0))


def _both(f: Fragment, a: Value | None, b: Value | None) -> Value | None:
    return f.op("Add", a, b) if a is not None and b is not None else a or b


def _multi_head(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value."""
    if any(call.has(n) for n in range(8, call.arity)) or not call.has(2):
        return None
    if call.rank(0) != 3 or (call.has(4) and call.rank(4) != 2):
        return None
    parts = [call.value(n) for n in range(3)]
    if call.has(3):
        if any(call.rank(n) != 3 for n in range(3)):
            return None
        ends = np.cumsum([0, *(p.extents[-1] for p in parts)]).tolist()
        sizes = f.constant([b - a for a, b in pairwise(ends)], int64)
        biases = _split(f, call.value(3), sizes)
        parts = [f.op("Add", p, b) for p, b in zip(parts, biases, strict=True)]
    count = call.attr("num_heads")
    query, *kept = (p if len(p.extents) == 4 else _heads(call, f, p, count) for p in parts)
    for n in (0, 1):
        if call.has(6 + n):
            kept[n] = f.op("Concat", call.value(6 + n), kept[n], axis=2)
    mask = _both(f, _padding(call, f, _optional(call, 4)), _optional(call, 5))
    return [_attend(call, f, query, kept[0], kept[1], mask), *kept]


def _split(f: Fragment, x: Value, sizes: Value, axis: int = 0) -> list[Value]:
    return f.pieces("Split", x, sizes, count=3, axis=axis)


def _attention(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: input, weights, bias, mask_index, past, attention_bias."""
    if call.has(4) or call.wants(1) or (call.has(3) and call.rank(3) != 2):
        return None
    if call.attr("do_rotary", 0):
        return None
    projected = f.op("MatMul", call.value(0), call.value(1))
    if call.has(2):
        projected = f.op("Add", projected, call.value(2))
    hidden = projected.extents[-1]
    sizes = call.attr("qkv_hidden_sizes") or [hidden // 3] * 3
    parts = _split(f, projected, f.constant(sizes, int64), axis=2)
    heads = [_heads(call, f, p, call.attr("num_heads")) for p in parts]
    mask = _both(f, _padding(call, f, _optional(call, 3)), _optional(call, 5))
    return [_attend(call, f, heads[0], heads[1], heads[2], mask)]


def _rotary(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: x (3 or 4 axes), positions, cosines and sines per position."""
    if call.attr("is_packed_batching", 0):
        return None
    x = call.value(0)
    flat = call.rank(0) == 3
    half = call.shape(2)[-1]
    if flat:
        size = call.shape(0)[-1] // call.attr("num_heads", 0) if call.attr("num_heads", 0) else 0
        x = _heads(call, f, x, call.shape(0)[-1] // (size or 2 * half))
    batch, heads, length, size = x.extents
    positions = call.value(1)
    if call.shape(1) == (1,):
        positions = f.op("Add", positions, f.constant(np.arange(length)[None], int64))
    angles = [
        f.op("Unsqueeze", f.op("Gather", call.value(n), positions), f.constant([1], int64))
        for n in (2, 3)
    ]
    y = rotated(f, x, half, angles, bool(call.attr("interleaved", 0)))
    if not flat:
        return [y]
    merged = f.constant([batch, length, heads * size], int64)
    return [f.op("Reshape", f.op("Transpose", y, perm=[0, 2, 1, 3]), merged)]


def rotated(f: Fragment, x: Value, half: int, angles: Sequence[Value], interleaved: bool) -> Value:
    """Pairs of the first 2 * half elements of the last axis turned by their angles."""
    shape = x.extents
    rest = shape[-1] - 2 * half
    head, tail = x, None
    if rest:
        head, tail = f.pieces("Split", x, f.constant([2 * half, rest], int64), count=2, axis=3)
    if interleaved:
        head = f.op("Reshape", head, f.constant([*shape[:3], half, 2], int64))
        pair = f.pieces("Split", head, f.constant([1, 1], int64), count=2, axis=4)
        a, b = (f.op("Reshape", p, f.constant([*shape[:3], half], int64)) for p in pair)
    else:
        a, b = f.pieces("Split", head, f.constant([half, half], int64), count=2, axis=3)
    cos, sin = angles
    left = f.op("Sub", f.op("Mul", a, cos), f.op("Mul", b, sin))
    right = f.op("Add", f.op("Mul", a, sin), f.op("Mul", b, cos))
    if interleaved:
        last = f.constant([-1], int64)
        columns = [f.op("Unsqueeze", v, last) for v in (left, right)]
        joined = f.op("Concat", *columns, axis=4)
        joined = f.op("Reshape", joined, f.constant([*shape[:3], 2 * half], int64))
    else:
        joined = f.op("Concat", left, right, axis=3)
    return joined if tail is None else f.op("Concat", joined, tail, axis=3)


def _multi_head_types(call: OpCall) -> Sequence[Type]:
    batch, length, _ = call.shape(0)
    count = call.attr("num_heads")
    caches: list[Type] = []
    for n in (1, 2):
        shape = call.shape(n)
        heads = shape if len(shape) == 4 else (batch, count, shape[1], shape[2] // count)
        past = call.shape(5 + n)[2] if call.has(5 + n) else 0
        caches.append((call.dtype(0), (*heads[:2], heads[2] + past, heads[3])))
    width = count * (caches[1][1] or (0,))[-1]
    return [(call.dtype(0), (batch, length, width)), *caches]


def _attention_type(call: OpCall) -> Sequence[Type]:
    batch, length, _ = call.shape(0)
    sizes = call.attr("qkv_hidden_sizes") or [call.shape(1)[1] // 3] * 3
    return [(call.dtype(0), (batch, length, sizes[2]))]


_define("MultiHeadAttention", _multi_head, _multi_head_types)
_define("Attention", _attention, _attention_type)
_define("RotaryEmbedding", _rotary)
