"""GroupQueryAttention of com.microsoft: causal attention with a key/value cache.

Sequences of a batch may have caches of different lengths: after this call, `seqlens_k[b] + 1`
elements are valid, and the new keys and values follow the old ones of their sequence. Semantics:
ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.microsoft import DOMAIN
from tilewright.graph.ops.microsoft_attention import (
    angles_at,
    merged_heads,
    rotated,
    split_heads,
)
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

# query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
# position_ids; the following inputs (attention_bias, head_sink and others) are not supported.
PAST, LENGTHS, TOTAL, COS, SIN, POSITIONS, KNOWN = 3, 5, 6, 7, 8, 9, 10


def _sizes(call: OpCall) -> tuple[int, int, int]:
    """The number of query heads, the number of key/value heads, the size of a head."""
    heads = call.attr("num_heads")
    shared = call.attr("kv_num_heads")
    hidden = call.shape(0)[-1]
    if call.has(1):
        size = hidden // heads
    else:
        size = hidden // (heads + 2 * shared)
    if heads % shared or (call.has(1) and call.shape(1)[-1] != shared * size):
        raise call.error(f"{heads} and {shared} heads do not fit the operands")
    return heads, shared, size


def _kept(call: OpCall) -> int:
    """The length of the cache that this call returns."""
    past = call.shape(PAST)[2] if call.has(PAST) else 0
    return max(past, call.int_scalar(TOTAL))


def _type(call: OpCall) -> Sequence[Type]:
    heads, shared, size = _sizes(call)
    batch, length, _ = call.shape(0)
    cache = (call.dtype(0), (batch, shared, _kept(call), size))
    return [(call.dtype(0), (batch, length, heads * size)), cache, cache]


def _operands(call: OpCall, f: Fragment) -> list[Value]:
    """Queries, keys and values as (batch, heads, length, size)."""
    heads, shared, size = _sizes(call)
    if call.has(1):
        parts = [call.value(n) for n in range(3)]
    else:
        widths = [n * size for n in (heads, shared, shared)]
        parts = f.split(call.value(0), widths, axis=2)
    counts = (heads, shared, shared)
    return [split_heads(f, x, n) for x, n in zip(parts, counts, strict=True)]


def _cached(
    f: Fragment,
    past: Value | None,
    new: Value,
    start: Value,
    kept: int,
) -> Value:
    """The cache with `new` stored after the first `start` (batch) elements."""
    if past is None:
        return new
    batch, heads, _, size = new.extents
    room = kept - past.extents[2]
    if room:
        grown = f.constant(np.zeros((batch, heads, room, size)), past.dtype)
        past = f.op("Concat", past, grown, axis=2)
    return f.op("TensorScatter", past, new, start, version=24, axis=2)


def _mask(
    call: OpCall,
    f: Fragment,
    positions: Value,
    kept: int,
) -> Value:
    """The keys that each query may see: (batch, 1, 1, length, kept)."""
    query = f.term(f.unsqueeze(positions, 1, 2, 4))
    key = f.term(f.constant(np.arange(kept), int64))
    seen = key <= query
    window: int = call.attr("local_window_size", -1)
    if window >= 0:
        seen = seen & (key > query - window)
    return seen.value


def _valid(f: Fragment, positions: Value, mask: Value, values: Value) -> Value:
    """The values that a query may see, else zeros: 0 times other memory might be NaN.

    mask: as from `_mask`. For several queries, values up to the last one's position count.
    """
    batch, length = positions.extents
    _, _, kept, _ = values.extents
    if length == 1:
        seen = f.term(f.reshape(mask, batch, 1, kept, 1))
    else:
        window = (f.ints(length - 1), f.ints(length), f.ints(1))
        last = f.op("Slice", positions, *window)
        places = f.constant(np.arange(kept)[:, None], int64)
        seen = f.term(places) <= f.reshape(last, batch, 1, 1, 1)
    return seen.chosen(values, 0).value


def attended(
    f: Fragment,
    query: Value,
    keys: Value,
    values: Value,
    mask: Value,
    scale: float,
    cap: float,
) -> Value:
    """softmax(cap(q k^T * scale) where mask, else -inf) v, for (batch, heads, length, size).

    Consecutive heads of queries share a head of keys and values. mask: (batch, 1, 1, length, keys).
    cap: 0 for none.
    """
    batch, heads, length, size = query.extents
    shared = keys.extents[1]
    turned = f.transpose(f.unsqueeze(keys, 2), 0, 1, 2, 4, 3)
    by_group = f.reshape(query, batch, shared, heads // shared, length, size)
    scores = f.term(by_group).op("MatMul", turned) * scale
    if cap:
        limit = scores.of(cap)
        scores = (scores / limit).op("Tanh") * limit
    scores = f.term(mask).chosen(scores, -math.inf)
    weights = scores.op("Softmax", axis=-1)
    y = weights.op("MatMul", f.unsqueeze(values, 2))
    return f.reshape(y.value, batch, heads, length, values.extents[-1])


def _decompose(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    if any(call.has(n) for n in range(KNOWN, call.arity)):
        return None
    if call.attr("smooth_softmax", 0):
        return None
    query, key, value = _operands(call, f)
    batch, _, length, _ = query.extents
    kept = _kept(call)
    start = f.constant(np.zeros((batch, 1)), int64)
    if length != call.int_scalar(TOTAL):
        ends = f.term(f.cast(call.value(LENGTHS), int64))
        first = ends - (length - 1)
        start = f.reshape(first.value, batch, 1)
    steps = f.constant(np.arange(length)[None], int64)
    place = f.op("Add", start, steps)
    if call.attr("do_rotary", 0):
        turn = place
        if call.has(POSITIONS):
            turn = f.cast(call.value(POSITIONS), int64)
        angles = [angles_at(f, call.value(n), turn) for n in (COS, SIN)]
        interleaved = bool(call.attr("rotary_interleaved", 0))
        half = call.shape(COS)[-1]
        query = rotated(f, query, half, angles, interleaved)
        key = rotated(f, key, half, angles, interleaved)
    behind = f.reshape(start, batch)
    caches = []
    for n, new in enumerate((key, value)):
        past = call.given(PAST + n)
        caches.append(_cached(f, past, new, behind, kept))
    keys, values = caches
    mask = _mask(call, f, place, kept)
    valid = values if kept == length else _valid(f, place, mask, values)
    scale = call.attr("scale", 0.0) or 1 / math.sqrt(query.extents[-1])
    cap = call.attr("softcap", 0.0)
    y = attended(f, query, keys, valid, mask, scale, cap)
    return [merged_heads(f, y), keys, values]


register(OpDef("GroupQueryAttention", _type, DOMAIN, decompose=_decompose))
