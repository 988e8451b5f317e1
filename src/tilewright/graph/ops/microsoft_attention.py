"""Attention of the domain com.microsoft in terms of ONNX operators.

Semantics: ContribOperators.md of ONNX Runtime and its CPU kernels. The forms that exported models
of the BERT and GPT-2 families use are supported; other forms raise an error that names them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.microsoft import DOMAIN
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register


def _refuse(call: OpCall, what: str) -> NoReturn:
    raise call.error(f"{what}: this form of {call.operation.qualified} is not covered")


def split_heads(f: Fragment, x: Value, heads: int) -> Value:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    batch, length, hidden = x.extents
    by_head = f.reshape(x, batch, length, heads, hidden // heads)
    return f.transpose(by_head, 0, 2, 1, 3)


def merged_heads(f: Fragment, y: Value) -> Value:
    """(batch, heads, length, size) as (batch, length, heads * size)."""
    batch, heads, length, size = y.extents
    turned = f.transpose(y, 0, 2, 1, 3)
    return f.reshape(turned, batch, length, heads * size)


def _attend(
    call: OpCall,
    f: Fragment,
    q: Value,
    kept: Sequence[Value],
    added: Sequence[Value | None],
) -> Value:
    """softmax(q k^T * scale + added) v for (batch, heads, length, size), heads merged after."""
    k, v = kept
    scale: float = call.attr("scale", 0.0) or 1 / math.sqrt(q.extents[-1])
    turned = f.transpose(k, 0, 1, 3, 2)
    scores = f.term(q).op("MatMul", turned) * scale
    for a in added:
        if a is not None:
            scores = scores + a
    if call.attr("unidirectional", 0):
        # Not added: keys that only the mask hides precede those that do not exist yet.
        rows = q.extents[2]
        columns = k.extents[2]
        every = np.ones((rows, columns), bool)
        seen = f.constant(np.tril(every, columns - rows))
        scores = f.term(seen).chosen(scores, call.dtype(0).min)
    weights = scores.op("Softmax", axis=-1)
    y = weights.op("MatMul", v)
    return merged_heads(f, y.value)


def _mask(
    call: OpCall,
    f: Fragment,
    i: int,
    rows: int,
    columns: int,
) -> Value | None:
    """The term that input `i`, the mask, adds to scores of (batch, heads, rows, columns).

    Its shapes: (batch): the number of keys; (2 * batch): the ends of the keys, then their starts;
    (batch, columns) and (batch, rows, columns): 1 for a key that counts; (batch, 1, most, most):
    the same for the longest sequence, with the queries at the end of the existing keys. (batch, 1)
    and (1, 1) hide all keys or none, which changes nothing.
    """
    if not call.has(i):
        return None
    mask = call.value(i)
    batch = call.shape(0)[0]
    shape = call.shape(i)
    if shape in ((batch, 1), (1, 1)) and shape != (batch, columns):
        return None
    query_rows = 1
    if shape == (batch, columns):
        seen = _counts(f, mask)
    elif shape in ((batch,), (2 * batch,)):
        seen = _between(f, mask, batch, columns)
    elif shape == (batch, rows, columns):
        seen = _counts(f, mask)
        query_rows = rows
    elif _is_square_mask(shape, batch, columns):
        starts = f.ints(0, columns - rows, 0)
        ends = f.ints(batch, columns, columns)
        axes = f.ints(0, 2, 3)
        seen = _counts(f, f.op("Slice", mask, starts, ends, axes))
        query_rows = rows
    else:
        scores = [batch, rows, columns]
        _refuse(call, f"a mask of shape {list(shape)} for scores of {scores}")
    hidden = f.constant(
        call.attr("mask_filter_value", -10000.0),
        call.dtype(0),
    )
    seen = f.reshape(seen, batch, 1, query_rows, columns)
    return f.op("Where", seen, f.constant(0, call.dtype(0)), hidden)


def _counts(f: Fragment, mask: Value) -> Value:
    return f.op("Greater", mask, f.constant(0, mask.dtype))


def _is_square_mask(
    shape: Sequence[int],
    batch: int,
    columns: int,
) -> bool:
    """Whether `shape` is (batch, 1, most, most) and large enough for all columns."""
    if len(shape) != 4 or tuple(shape[:2]) != (batch, 1):
        return False
    _, _, most, across = shape
    return most == across and most >= columns


def _between(
    f: Fragment,
    ends: Value,
    batch: int,
    columns: int,
) -> Value:
    """(batch, columns): the keys before the end and, if given, not before the start."""
    places = f.term(f.constant(np.arange(columns), ends.dtype))
    column = f.reshape(ends, -1, batch, 1)
    if ends.extents == (batch,):
        seen = places < column
    else:
        end, start = f.split(column, [1, 1], axis=0)
        seen = (places < end) & (places >= start)
    return seen.value


# ------------------------------------------------------------------------------ MultiHeadAttention

# query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value; the following
# inputs (the valid length of a shared cache, and others) are not supported.
_BIAS, _PADDING, _ADDED, _PAST, _BEHIND = 3, 4, 5, 6, 8


def _check_multi_head(call: OpCall) -> None:
    if any(call.has(n) for n in range(_BEHIND, call.arity)):
        _refuse(call, "a cache that is shared or indirect")
    if call.rank(0) != 3 or not (call.has(1) and call.has(2)):
        _refuse(call, "packed operands")
    if call.has(_BIAS) and any(call.rank(n) != 3 for n in range(3)):
        _refuse(call, "a bias for operands that are already split into heads")


def _multi_head(call: OpCall, f: Fragment) -> Sequence[Value]:
    parts = [call.value(n) for n in range(3)]
    if call.has(_BIAS):
        widths = [p.extents[-1] for p in parts]
        biases = f.split(call.value(_BIAS), widths, axis=0)
        parts = [f.op("Add", p, b) for p, b in zip(parts, biases, strict=True)]
    count = call.attr("num_heads")
    query, *kept = [
        p if len(p.extents) == 4 else split_heads(f, p, count) for p in parts
    ]
    for n in (0, 1):
        if call.has(_PAST + n):
            kept[n] = f.op(
                "Concat",
                call.value(_PAST + n),
                kept[n],
                axis=2,
            )
    mask = _mask(
        call,
        f,
        _PADDING,
        rows=query.extents[2],
        columns=kept[0].extents[2],
    )
    added = [mask, call.given(_ADDED)]
    return [_attend(call, f, query, kept, added), *kept]


def _multi_head_types(call: OpCall) -> Sequence[Type]:
    _check_multi_head(call)
    batch, length, _ = call.shape(0)
    keys = _cache_shape(call, 1)
    values = _cache_shape(call, 2)
    width = call.attr("num_heads") * values[-1]
    dtype = call.dtype(0)
    return [(dtype, (batch, length, width)), (dtype, keys), (dtype, values)]


register(OpDef("MultiHeadAttention", _multi_head_types, DOMAIN, decompose=_multi_head))


# --------------------------------------------------------------------------------------- Attention

# input, weights, bias, mask_index, past (keys, then values), attention_bias, past_sequence_length.
_MASK, _KEPT, _OFFSETS, _VALID = 3, 4, 5, 6


def _cache_shape(call: OpCall, n: int) -> tuple[int, ...]:
    """The shape of the keys (n = 1) or values (n = 2) including the past."""
    shape = call.shape(n)
    if len(shape) == 4:
        batch, heads, length, size = shape
    else:
        batch = call.shape(0)[0]
        length = shape[1]
        heads = call.attr("num_heads")
        size = shape[2] // heads
    past = 5 + n
    if call.has(past):
        length += call.shape(past)[2]
    return (batch, heads, length, size)


def _hidden_sizes(call: OpCall) -> list[int]:
    """The hidden sizes of queries, keys and values, over all heads."""
    total = call.shape(1)[-1]
    found = [int(n) for n in call.attr("qkv_hidden_sizes") or [total // 3] * 3]
    heads = call.attr("num_heads")
    if len(found) != 3 or sum(found) != total or found[0] != found[1]:
        weights = list(call.shape(1))
        raise call.error(f"hidden sizes {found} do not fit the weights {weights}")
    if any(n % heads for n in found):
        raise call.error(f"hidden sizes {found} are not divisible by {heads} heads")
    return found


def _attention_types(call: OpCall) -> Sequence[Type]:
    if call.attr("do_rotary", 0):
        _refuse(call, "do_rotary")
    if call.has(_VALID) or call.attr("past_present_share_buffer", 0):
        _refuse(call, "a cache that past and present share")
    if call.rank(0) != 3:
        shape = list(call.shape(0))
        raise call.error(f"the input {shape} is not (batch, length, hidden)")
    batch, length, _ = call.shape(0)
    query, _, values = _hidden_sizes(call)
    y: Type = (call.dtype(0), (batch, length, values))
    if not (call.has(_KEPT) or call.wants(1)):
        return [y]
    if query != values:
        raise call.error(
            f"hidden sizes {query} and {values} differ, so they cannot share a cache"
        )
    heads = call.attr("num_heads")
    size = query // heads
    if call.has(_KEPT):
        past = call.shape(_KEPT)
    else:
        past = (2, batch, heads, 0, size)
    if len(past) != 5 or past != (2, batch, heads, past[3], size):
        raise call.error(f"past {list(past)} does not fit {heads} heads of {size}")
    present = (2, batch, heads, past[3] + length, size)
    return [y, (call.dtype(0), present)]


def _attention(call: OpCall, f: Fragment) -> Sequence[Value]:
    projected = f.op("MatMul", call.value(0), call.value(1))
    if call.has(2):
        projected = f.op("Add", projected, call.value(2))
    parts = f.split(projected, _hidden_sizes(call), axis=2)
    query, *kept = [split_heads(f, p, call.attr("num_heads")) for p in parts]
    if call.has(_KEPT):
        past = f.split(call.value(_KEPT), [1, 1], axis=0)
        before = [f.squeeze(p, 0) for p in past]
        pairs = zip(before, kept, strict=True)
        kept = [f.op("Concat", *pair, axis=2) for pair in pairs]
    mask = _mask(
        call,
        f,
        _MASK,
        rows=query.extents[2],
        columns=kept[0].extents[2],
    )
    y = _attend(call, f, query, kept, [mask, call.given(_OFFSETS)])
    if not call.wants(1):
        return [y]
    present = [f.unsqueeze(k, 0) for k in kept]
    return [y, f.op("Concat", *present, axis=0)]


register(OpDef("Attention", _attention_types, DOMAIN, decompose=_attention))


# --------------------------------------------------------------------------------- RotaryEmbedding


def _rotary(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: x (3 or 4 axes), positions, cosines and sines per position."""
    if call.attr("is_packed_batching", 0):
        return None
    x = call.value(0)
    flat = call.rank(0) == 3
    half = call.shape(2)[-1]
    if flat:
        hidden = call.shape(0)[-1]
        heads = call.attr("num_heads", 0)
        size = hidden // heads if heads else 0
        x = split_heads(f, x, hidden // (size or 2 * half))
    length = x.extents[2]
    positions = call.value(1)
    if call.shape(1) == (1,):
        steps = f.constant(np.arange(length)[None], int64)
        positions = f.op("Add", positions, steps)
    angles = [angles_at(f, call.value(n), positions) for n in (2, 3)]
    y = rotated(f, x, half, angles, bool(call.attr("interleaved", 0)))
    return [merged_heads(f, y) if flat else y]


def angles_at(f: Fragment, table: Value, positions: Value) -> Value:
    """The cosines or sines of positions, for all heads."""
    rows = f.op("Gather", table, positions)
    return f.unsqueeze(rows, 1)


def rotated(
    f: Fragment,
    x: Value,
    half: int,
    angles: Sequence[Value],
    interleaved: bool,
) -> Value:
    """Rotate pairs in the first 2 * half elements of the last axis by their angles."""
    shape = x.extents
    rest = shape[-1] - 2 * half
    head = x
    tail = None
    if rest:
        head, tail = f.split(x, [2 * half, rest], axis=3)
    if interleaved:
        head = f.reshape(head, *shape[:3], half, 2)
        pair = f.split(head, [1, 1], axis=4)
        a, b = (f.reshape(p, *shape[:3], half) for p in pair)
    else:
        a, b = f.split(head, [half, half], axis=3)
    cos, sin = angles
    left = f.term(a)
    right = f.term(b)
    turned = (left * cos - right * sin, left * sin + right * cos)
    sides = [v.value for v in turned]
    if interleaved:
        columns = [f.unsqueeze(v, -1) for v in sides]
        joined = f.op("Concat", *columns, axis=4)
        joined = f.reshape(joined, *shape[:3], 2 * half)
    else:
        joined = f.op("Concat", *sides, axis=3)
    if tail is None:
        return joined
    return f.op("Concat", joined, tail, axis=3)


register(
    OpDef(
        "RotaryEmbedding",
        same_type,
        DOMAIN,
        decompose=_rotary,
    )
)
