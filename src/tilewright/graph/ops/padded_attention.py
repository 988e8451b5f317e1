"""Attention over a cache of which only a given number of keys per sequence are valid.

ONNX defines its Attention with `nonpad_kv_seqlen` by a mask that is added to the scores of all
keys. Here padding is not read: its keys have weight 0 and its values count as 0, whatever the
memory holds. A query that sees no key yields 0, as ONNX requires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.grouped import attended
from tilewright.graph.ops.microsoft_attention import merged_heads, split_heads
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

PADDED_ATTENTION, DOMAIN = "PaddedAttention", "tilewright"
QUERY, KEY, VALUE, VALID = range(4)


def _heads(call: OpCall, place: int) -> int:
    if call.rank(place) == 4:
        return call.shape(place)[1]
    name = "q_num_heads" if place == QUERY else "kv_num_heads"
    return int(call.attr(name))


def _type(call: OpCall) -> Sequence[Type]:
    heads = _heads(call, QUERY)
    shared = _heads(call, KEY)
    if heads % shared or _heads(call, VALUE) != shared:
        raise call.error(f"{heads} heads of queries do not share {shared} of keys")
    *rows, _ = call.shape(QUERY)
    last = call.shape(VALUE)[-1]
    if call.rank(QUERY) == 3:
        last = last // shared * heads
    return [(call.dtype(QUERY), (*rows, last))]


def _operand(
    call: OpCall,
    f: Fragment,
    place: int,
) -> Value:
    """As (batch, heads, length, size)."""
    x = call.value(place)
    if call.rank(place) == 4:
        return x
    heads = _heads(call, place)
    return split_heads(f, x, heads)


def _decompose(call: OpCall, f: Fragment) -> list[Value]:
    query = _operand(call, f, QUERY)
    keys = _operand(call, f, KEY)
    values = _operand(call, f, VALUE)
    batch, _, length, size = query.extents
    kept = keys.extents[2]
    valid = f.reshape(call.value(VALID), batch, 1, 1, 1, 1)
    # Each query sees the keys before this position: the last query is at the last valid key.
    end = valid
    if call.attr("is_causal", 0):
        rows = np.arange(length) - (length - 1)
        offsets = f.constant(rows.reshape(1, 1, 1, length, 1), int64)
        end = f.op("Add", valid, offsets)
    place = f.constant(np.arange(kept), int64)
    seen = f.op("Less", place, end)
    column = f.reshape(place, kept, 1)
    counts = f.op(
        "Less",
        column,
        f.reshape(valid, batch, 1, 1, 1),
    )
    zero = f.constant(0, values.dtype)
    y = attended(
        f,
        query,
        keys,
        f.op("Where", counts, values, zero),
        seen,
        call.attr("scale", 0.0) or 1 / math.sqrt(size),
        call.attr("softcap", 0.0),
    )
    blind = f.op(
        "LessOrEqual",
        f.reshape(end, batch, 1, -1, 1),
        f.constant(0, int64),
    )
    y = f.op("Where", blind, zero, y)
    if call.rank(QUERY) == 3:
        y = merged_heads(f, y)
    return [y]


register(
    OpDef(
        PADDED_ATTENTION,
        _type,
        DOMAIN,
        decompose=_decompose,
    )
)
