"""Attention over a cache of which so many keys of each sequence are no padding.

ONNX defines its Attention with `nonpad_kv_seqlen` by a mask that is added to the scores of all
keys. Here padding is not read: its keys have the weight 0, and its values are 0, whatever is there.
A query that sees no key gives 0, as ONNX says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.grouped import attended, merged_heads, split_heads
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

PADDED_ATTENTION, DOMAIN = "PaddedAttention", "tilewright"
QUERY, KEY, VALUE, VALID = range(4)


def _heads(call: OpCall, place: int) -> int:
    if call.rank(place) == 4:
        return call.shape(place)[1]
    name = "q_num_heads" if place == QUERY else "kv_num_heads"
    return int(call.attr(name))


def _type(call: OpCall) -> Sequence[Type]:
    heads, shared = _heads(call, QUERY), _heads(call, KEY)
    if heads % shared or _heads(call, VALUE) != shared:
        raise call.error(f"{heads} heads of queries do not share {shared} of keys")
    *rows, _ = call.shape(QUERY)
    last = call.shape(VALUE)[-1]
    if call.rank(QUERY) == 3:
        last = last // shared * heads
    return [(call.dtype(QUERY), (*rows, last))]


def _operand(call: OpCall, f: Fragment, place: int) -> Value:
    """As (batch, heads, length, size)."""
    x = call.value(place)
    if call.rank(place) == 4:
        return x
    heads = _heads(call, place)
    return split_heads(f, x, heads, x.extents[-1] // heads)


def _decompose(call: OpCall, f: Fragment) -> list[Value]:
    query, keys, values = (_operand(call, f, n) for n in (QUERY, KEY, VALUE))
    batch, _, length, size = query.extents
    kept = keys.extents[2]
    valid = f.reshape(call.value(VALID), batch, 1, 1, 1, 1)
    place = f.constant(np.arange(kept), int64)
    seen = f.op("Less", place, valid)
    rows = f.constant(np.zeros((1, 1, 1, length, 1)), int64)
    if call.attr("is_causal", 0):
        # The last query is at the last valid key.
        offsets = np.arange(length).reshape(1, 1, 1, length, 1) - (length - 1)
        rows = f.constant(offsets, int64)
        seen = f.op("Less", place, f.op("Add", valid, rows))
    column = f.constant(np.arange(kept)[:, None], int64)
    counts = f.op("Less", column, f.reshape(valid, batch, 1, 1, 1))
    zero = f.constant(0, values.dtype)
    values = f.op("Where", counts, values, zero)
    scale = call.attr("scale", 0.0) or 1 / math.sqrt(size)
    y = attended(f, query, keys, values, seen, scale, call.attr("softcap", 0.0))
    first = f.reshape(f.op("Add", valid, rows), batch, 1, -1, 1)
    blind = f.op("LessOrEqual", first, f.constant(0, int64))
    y = f.op("Where", blind, zero, y)
    return [merged_heads(f, y) if call.rank(QUERY) == 3 else y]


register(OpDef(PADDED_ATTENTION, _type, DOMAIN, decompose=_decompose))
