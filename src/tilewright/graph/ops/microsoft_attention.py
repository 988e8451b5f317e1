"""Attention of the domain com.microsoft, by ONNX's own operators.

Source of the meanings: ContribOperators.md of ONNX Runtime, and its kernels for processors. What
exported models of the families of BERT and GPT-2 use is covered; the rest is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.microsoft import DOMAIN
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register


def _refuse(call: OpCall, what: str) -> NoReturn:
    raise call.error(f"{what}: this form of {call.operation.qualified} is not covered")


def _given(call: OpCall, i: int) -> Value | None:
    return call.value(i) if call.has(i) else None


def _heads(f: Fragment, x: Value, count: int) -> Value:
    """(batch, length, hidden) as (batch, heads, length, size)."""
    batch, length, hidden = x.extents
    shape = f.constant([batch, length, count, hidden // count], int64)
    return f.op("Transpose", f.op("Reshape", x, shape), perm=[0, 2, 1, 3])


def _merged(f: Fragment, x: Value) -> Value:
    """(batch, heads, length, size) as (batch, length, hidden)."""
    batch, heads, length, size = x.extents
    shape = f.constant([batch, length, heads * size], int64)
    return f.op("Reshape", f.op("Transpose", x, perm=[0, 2, 1, 3]), shape)


def _attend(
    call: OpCall,
    f: Fragment,
    q: Value,
    kept: Sequence[Value],
    added: Sequence[Value | None],
) -> Value:
    """softmax(q k^T * scale + added) v for (batch, heads, length, size), heads merged after."""
    k, v = kept
    scale = call.attr("scale", 0.0) or 1 / math.sqrt(q.extents[-1])
    scores = f.op("MatMul", q, f.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = f.op("Mul", scores, f.constant(scale, call.dtype(0)))
    for a in added:
        scores = scores if a is None else f.op("Add", scores, a)
    if call.attr("unidirectional", 0):
        # Not added: a key that only the mask hides comes before those that are not yet there.
        rows, columns = q.extents[2], k.extents[2]
        seen = f.constant(np.tril(np.ones((rows, columns), bool), columns - rows))
        scores = f.op(
            "Where", seen, scores, f.constant(call.dtype(0).min, call.dtype(0))
        )
    return _merged(f, f.op("MatMul", f.op("Softmax", scores, axis=-1), v))


def _mask(call: OpCall, f: Fragment, i: int, rows: int, columns: int) -> Value | None:
    """What input `i`, the mask, adds to scores of (batch, heads, rows, columns).

    Its shapes: (batch) the number of keys; (2 * batch) where keys end, then where they begin;
    (batch, columns) and (batch, rows, columns) 1 for a key that counts; (batch, 1, most, most)
    the same for the longest sequence, the queries at the end of what is there. (batch, 1) and
    (1, 1) hide all keys or none: no difference.
    """
    if not call.has(i):
        return None
    mask, batch = call.value(i), call.shape(0)[0]
    shape = call.shape(i)
    if shape == (batch, columns):
        seen, to = _counts(f, mask), [batch, 1, 1, columns]
    elif shape in ((batch, 1), (1, 1)):
        return None
    elif shape in ((batch,), (2 * batch,)):
        seen, to = _between(f, mask, batch, columns), [batch, 1, 1, columns]
    elif shape == (batch, rows, columns):
        seen, to = _counts(f, mask), [batch, 1, rows, columns]
    elif (
        len(shape) == 4 and shape[:2] == (batch, 1) and shape[2] == shape[3] >= columns
    ):
        ends = [[0, columns - rows, 0], [batch, columns, columns], [0, 2, 3]]
        part = f.op("Slice", mask, *(f.constant(e, int64) for e in ends))
        seen, to = _counts(f, part), [batch, 1, rows, columns]
    else:
        _refuse(
            call,
            f"a mask of shape {list(shape)} for scores of {[batch, rows, columns]}",
        )
    hidden = f.constant(call.attr("mask_filter_value", -10000.0), call.dtype(0))
    seen = f.op("Reshape", seen, f.constant(to, int64))
    return f.op("Where", seen, f.constant(0, call.dtype(0)), hidden)


def _counts(f: Fragment, mask: Value) -> Value:
    return f.op("Greater", mask, f.constant(0, mask.dtype))


def _between(f: Fragment, ends: Value, batch: int, columns: int) -> Value:
    """(batch, columns): which keys are before the end and, where that is given, from the start."""
    places = f.constant(np.arange(columns), ends.dtype)
    column = f.op("Reshape", ends, f.constant([-1, batch, 1], int64))
    if ends.extents == (batch,):
        return f.op("Less", places, column)
    end, start = f.pieces("Split", column, f.constant([1, 1], int64), count=2, axis=0)
    return f.op("And", f.op("Less", places, end), f.op("GreaterOrEqual", places, start))


# ------------------------------------------------------------------------------ MultiHeadAttention

# query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value; behind those: the
# length of what is valid in a shared cache, and others.
_BIAS, _PADDING, _ADDED, _PAST, _BEHIND = 3, 4, 5, 6, 8


def _check_multi_head(call: OpCall) -> None:
    if any(call.has(n) for n in range(_BEHIND, call.arity)):
        _refuse(call, "a cache that is shared or indirect")
    if call.rank(0) != 3 or not (call.has(1) and call.has(2)):
        _refuse(call, "packed operands")
    if call.has(_BIAS) and any(call.rank(n) != 3 for n in range(3)):
        _refuse(call, "a bias of operands that have heads already")


def _multi_head(call: OpCall, f: Fragment) -> Sequence[Value]:
    parts = [call.value(n) for n in range(3)]
    if call.has(_BIAS):
        ends = np.cumsum([0, *(p.extents[-1] for p in parts)]).tolist()
        sizes = f.constant([b - a for a, b in pairwise(ends)], int64)
        biases = f.pieces("Split", call.value(_BIAS), sizes, count=3, axis=0)
        parts = [f.op("Add", p, b) for p, b in zip(parts, biases, strict=True)]
    count = call.attr("num_heads")
    query, *kept = [p if len(p.extents) == 4 else _heads(f, p, count) for p in parts]
    for n in (0, 1):
        if call.has(_PAST + n):
            kept[n] = f.op("Concat", call.value(_PAST + n), kept[n], axis=2)
    mask = _mask(call, f, _PADDING, query.extents[2], kept[0].extents[2])
    return [_attend(call, f, query, kept, [mask, _given(call, _ADDED)]), *kept]


def _multi_head_types(call: OpCall) -> Sequence[Type]:
    _check_multi_head(call)
    batch, length, _ = call.shape(0)
    count = call.attr("num_heads")
    caches: list[Type] = []
    for n in (1, 2):
        shape = call.shape(n)
        heads = (
            shape if len(shape) == 4 else (batch, count, shape[1], shape[2] // count)
        )
        past = call.shape(5 + n)[2] if call.has(5 + n) else 0
        caches.append((call.dtype(0), (*heads[:2], heads[2] + past, heads[3])))
    width = count * (caches[1][1] or (0,))[-1]
    return [(call.dtype(0), (batch, length, width)), *caches]


register(OpDef("MultiHeadAttention", _multi_head_types, DOMAIN, decompose=_multi_head))


# --------------------------------------------------------------------------------------- Attention

# input, weights, bias, mask_index, past (keys, then values), attention_bias, past_sequence_length.
_MASK, _KEPT, _OFFSETS, _VALID = 3, 4, 5, 6


def _hidden_sizes(call: OpCall) -> list[int]:
    """Of queries, keys and values, all heads together."""
    total = call.shape(1)[-1]
    found = [int(n) for n in call.attr("qkv_hidden_sizes") or [total // 3] * 3]
    heads = call.attr("num_heads")
    if len(found) != 3 or sum(found) != total or found[0] != found[1]:
        raise call.error(
            f"hidden sizes {found} do not fit the weights {list(call.shape(1))}"
        )
    if any(n % heads for n in found):
        raise call.error(f"hidden sizes {found} are not divisible by {heads} heads")
    return found


def _attention_types(call: OpCall) -> Sequence[Type]:
    if call.attr("do_rotary", 0):
        _refuse(call, "do_rotary")
    if call.has(_VALID) or call.attr("past_present_share_buffer", 0):
        _refuse(call, "a cache that past and present share")
    if call.rank(0) != 3:
        raise call.error(
            f"the input {list(call.shape(0))} is not (batch, length, hidden)"
        )
    batch, length, _ = call.shape(0)
    query, _, values = _hidden_sizes(call)
    y: Type = (call.dtype(0), (batch, length, values))
    if not (call.has(_KEPT) or call.wants(1)):
        return [y]
    if query != values:
        raise call.error(
            f"hidden sizes {query} and {values} differ: they share no cache"
        )
    heads = call.attr("num_heads")
    past = (
        call.shape(_KEPT) if call.has(_KEPT) else (2, batch, heads, 0, query // heads)
    )
    if len(past) != 5 or past != (2, batch, heads, past[3], query // heads):
        raise call.error(
            f"past {list(past)} does not fit {heads} heads of {query // heads}"
        )
    return [y, (call.dtype(0), (*past[:3], past[3] + length, past[4]))]


def _attention(call: OpCall, f: Fragment) -> Sequence[Value]:
    projected = f.op("MatMul", call.value(0), call.value(1))
    if call.has(2):
        projected = f.op("Add", projected, call.value(2))
    sizes = f.constant(_hidden_sizes(call), int64)
    parts = f.pieces("Split", projected, sizes, count=3, axis=2)
    query, *kept = [_heads(f, p, call.attr("num_heads")) for p in parts]
    if call.has(_KEPT):
        past = f.pieces(
            "Split", call.value(_KEPT), f.constant([1, 1], int64), count=2, axis=0
        )
        first = f.constant([0], int64)
        before = [f.op("Squeeze", p, first) for p in past]
        kept = [f.op("Concat", p, k, axis=2) for p, k in zip(before, kept, strict=True)]
    mask = _mask(call, f, _MASK, query.extents[2], kept[0].extents[2])
    y = _attend(call, f, query, kept, [mask, _given(call, _OFFSETS)])
    if not call.wants(1):
        return [y]
    first = f.constant([0], int64)
    return [y, f.op("Concat", *(f.op("Unsqueeze", k, first) for k in kept), axis=0)]


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
        size = (
            call.shape(0)[-1] // call.attr("num_heads", 0)
            if call.attr("num_heads", 0)
            else 0
        )
        x = _heads(f, x, call.shape(0)[-1] // (size or 2 * half))
    length = x.extents[2]
    positions = call.value(1)
    if call.shape(1) == (1,):
        positions = f.op("Add", positions, f.constant(np.arange(length)[None], int64))
    angles = [
        f.op(
            "Unsqueeze",
            f.op("Gather", call.value(n), positions),
            f.constant([1], int64),
        )
        for n in (2, 3)
    ]
    y = rotated(f, x, half, angles, bool(call.attr("interleaved", 0)))
    if not flat:
        return [y]
    return [_merged(f, y)]


def rotated(
    f: Fragment, x: Value, half: int, angles: Sequence[Value], interleaved: bool
) -> Value:
    """Pairs of the first 2 * half elements of the last axis turned by their angles."""
    shape = x.extents
    rest = shape[-1] - 2 * half
    head, tail = x, None
    if rest:
        head, tail = f.pieces(
            "Split", x, f.constant([2 * half, rest], int64), count=2, axis=3
        )
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


register(
    OpDef(
        "RotaryEmbedding",
        lambda call: [(call.dtype(0), call.shape(0))],
        DOMAIN,
        decompose=_rotary,
    )
)
