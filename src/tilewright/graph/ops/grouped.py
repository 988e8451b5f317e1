"""GroupQueryAttention of com.microsoft: causal attention with a key/value cache.

Sequences of a batch may have caches of different lengths: `seqlens_k[b] + 1` elements are valid
after this call, and the new keys and values go right behind the old ones of their sequence.
Source of the meaning: ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.casts import number_of
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.microsoft import DOMAIN
from tilewright.graph.ops.microsoft_attention import rotated
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

# query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
# position_ids; behind those: attention_bias, head_sink and others, which are not covered.
PAST, LENGTHS, TOTAL, COS, SIN, POSITIONS, KNOWN = 3, 5, 6, 7, 8, 9, 10


def _sizes(call: OpCall) -> tuple[int, int, int]:
    """Heads of the queries, heads of keys and values, elements of a head."""
    heads, shared = call.attr("num_heads"), call.attr("kv_num_heads")
    hidden = call.shape(0)[-1]
    size = hidden // heads if call.has(1) else hidden // (heads + 2 * shared)
    if heads % shared or (call.has(1) and call.shape(1)[-1] != shared * size):
        raise call.error(f"{heads} and {shared} heads do not fit the operands")
    return heads, shared, size


def _kept(call: OpCall) -> int:
    """Elements along the cache that this call gives back."""
    past = call.shape(PAST)[2] if call.has(PAST) else 0
    return max(past, int(call.need(TOTAL).reshape(-1)[0]))


def _type(call: OpCall) -> Sequence[Type]:
    heads, shared, size = _sizes(call)
    batch, length, _ = call.shape(0)
    cache = (call.dtype(0), (batch, shared, _kept(call), size))
    return [(call.dtype(0), (batch, length, heads * size)), cache, cache]


def _split_heads(f: Fragment, x: Value, heads: int, size: int) -> Value:
    batch, length, _ = x.extents
    apart = f.op("Reshape", x, f.constant([batch, length, heads, size], int64))
    return f.op("Transpose", apart, perm=[0, 2, 1, 3])


def _operands(call: OpCall, f: Fragment) -> list[Value]:
    """Queries, keys and values as (batch, heads, length, size)."""
    heads, shared, size = _sizes(call)
    if call.has(1):
        parts = [call.value(n) for n in range(3)]
    else:
        widths = f.constant([heads * size, shared * size, shared * size], int64)
        parts = f.pieces("Split", call.value(0), widths, count=3, axis=2)
    counts = (heads, shared, shared)
    return [_split_heads(f, x, n, size) for x, n in zip(parts, counts, strict=True)]


def _cached(
    f: Fragment, past: Value | None, new: Value, start: Value, kept: int
) -> Value:
    """The cache with `new` put behind the first `start` (batch, 1, 1, 1) elements."""
    if past is None:
        return new
    batch, heads, length, size = new.extents
    room = kept - past.extents[2]
    if room:
        grown = f.constant(np.zeros((batch, heads, room, size)), past.dtype)
        past = f.op("Concat", past, grown, axis=2)
    at = f.op("Sub", f.constant(np.arange(kept).reshape(1, 1, -1, 1), int64), start)
    limit = f.constant(length, int64)
    zero = f.constant(0, int64)
    fresh = f.op("And", f.op("GreaterOrEqual", at, zero), f.op("Less", at, limit))
    if length > 1:
        inside = f.op("Max", f.op("Min", at, f.constant(length - 1, int64)), zero)
        shape = f.constant([batch, heads, kept, size], int64)
        new = f.op("GatherElements", new, f.op("Expand", inside, shape), axis=2)
    return f.op("Where", fresh, new, past)


def _mask(call: OpCall, f: Fragment, positions: Value, kept: int) -> Value:
    """Which keys a query may see: (batch, 1, 1, length, kept)."""
    query = f.op("Unsqueeze", positions, f.constant([1, 2, 4], int64))
    key = f.constant(np.arange(kept), int64)
    seen = f.op("LessOrEqual", key, query)
    window = call.attr("local_window_size", -1)
    if window < 0:
        return seen
    first = f.op("Sub", query, f.constant(window, int64))
    return f.op("And", seen, f.op("Greater", key, first))


def _attend(
    call: OpCall,
    f: Fragment,
    parts: Sequence[Value],
    keys: Value,
    values: Value,
    mask: Value,
) -> Value:
    heads, shared, size = _sizes(call)
    query = parts[0]
    dtype = call.dtype(0)
    batch, _, length, _ = query.extents
    group = heads // shared
    apart = f.constant([batch, shared, group, length, size], int64)
    one = f.constant([2], int64)
    turned = f.op("Transpose", f.op("Unsqueeze", keys, one), perm=[0, 1, 2, 4, 3])
    scores = f.op("MatMul", f.op("Reshape", query, apart), turned)
    scale = call.attr("scale", 0.0) or 1 / math.sqrt(size)
    scores = f.op("Mul", scores, f.constant(scale, dtype))
    cap = call.attr("softcap", 0.0)
    if cap:
        limit = f.constant(cap, dtype)
        scores = f.op("Mul", f.op("Tanh", f.op("Div", scores, limit)), limit)
    scores = f.op("Where", mask, scores, f.constant(dtype.min, dtype))
    y = f.op("MatMul", f.op("Softmax", scores, axis=-1), f.op("Unsqueeze", values, one))
    y = f.op("Reshape", y, f.constant([batch, heads, length, size], int64))
    merged = f.constant([batch, length, heads * size], int64)
    return f.op("Reshape", f.op("Transpose", y, perm=[0, 2, 1, 3]), merged)


def _decompose(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    if any(call.has(n) for n in range(KNOWN, call.arity)) or call.attr(
        "smooth_softmax", 0
    ):
        return None
    parts = _operands(call, f)
    batch, _, length, _ = parts[0].extents
    kept, wide = _kept(call), number_of("int64")
    first = length == int(call.need(TOTAL).reshape(-1)[0])
    start = f.constant(np.zeros((batch, 1)), int64)
    if not first:
        valid = f.op("Cast", call.value(LENGTHS), to=wide)
        start = f.op("Sub", valid, f.constant(length - 1, int64))
        start = f.op("Reshape", start, f.constant([batch, 1], int64))
    place = f.op("Add", start, f.constant(np.arange(length)[None], int64))
    if call.attr("do_rotary", 0):
        turn = (
            f.op("Cast", call.value(POSITIONS), to=wide)
            if call.has(POSITIONS)
            else place
        )
        axis = f.constant([1], int64)
        angles = [
            f.op("Unsqueeze", f.op("Gather", call.value(n), turn), axis)
            for n in (COS, SIN)
        ]
        swapped = bool(call.attr("rotary_interleaved", 0))
        half = call.shape(COS)[-1]
        parts = [*(rotated(f, x, half, angles, swapped) for x in parts[:2]), parts[2]]
    behind = f.op("Unsqueeze", start, f.constant([2, 3], int64))
    caches = [
        _cached(
            f, call.value(PAST + n) if call.has(PAST + n) else None, new, behind, kept
        )
        for n, new in enumerate(parts[1:])
    ]
    mask = _mask(call, f, place, kept)
    return [_attend(call, f, parts, caches[0], caches[1], mask), *caches]


register(OpDef("GroupQueryAttention", _type, DOMAIN, decompose=_decompose))
