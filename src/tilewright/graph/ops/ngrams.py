"""TfIdfVectorizer on numbers: how often each n-gram of a pool occurs in a row, weighted.

An n-gram is compared with n shifted slices of the row, for every distance between its items.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tilewright.base.dtypes import float32, int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.terms import TensorTerm

ELEMENTS = 1 << 24  # elements of one comparison of all positions with all n-grams


def _places(op: OpCall) -> list[int]:
    """The output column of each n-gram of the pool."""
    found = [int(n) for n in op.attr("ngram_indexes", ())]
    if not found:
        raise op.error("ngram_indexes is empty")
    return found


def _type(op: OpCall) -> Sequence[Type]:
    if op.rank(0) > 2:
        raise op.error(f"expected a vector or a matrix, got {list(op.shape(0))}")
    return [(float32, (*op.shape(0)[:-1], max(_places(op)) + 1))]


def _grams(op: OpCall) -> dict[int, Array] | None:
    """The n-grams of each length, one per row; None if one occurs twice."""
    pool = np.array(op.attr("pool_int64s") or (), np.int64)
    starts = [*op.attr("ngram_counts", ()), len(pool)]
    found = {}
    for n, (start, end) in enumerate(pairwise(starts), start=1):
        count = (end - start) // n
        found[n] = pool[start : start + count * n].reshape(-1, n)
    distinct = {n: len(np.unique(g, axis=0)) for n, g in found.items()}
    if any(distinct[n] < len(g) for n, g in found.items()):
        return None
    return found


def _vectorized(op: OpCall, f: Fragment) -> list[Value] | None:
    grams = _grams(op)
    places = _places(op)
    weights = op.attr("weights")
    if grams is None or not op.attr("pool_int64s") or not op.rank(0):
        return None
    total = sum(map(len, grams.values()))
    are_distinct = len(set(places)) == len(places)
    if not are_distinct or len(places) != total:
        return None
    if weights and places != list(range(len(weights))):
        # The standard and its reference disagree on what a weight belongs to.
        return None
    rows, length = (1, *op.shape(0))[-2:]
    if rows * length * total > ELEMENTS:
        return None
    x = f.cast(op.value(0), int64)
    x = f.op("Reshape", x, f.ints(rows, length), allowzero=1)
    parts = [_counts(op, f, x, g) for g in grams.values()]
    counts = f.op("Concat", *parts, axis=1)
    none = f.constant(np.zeros((rows, 1)), float32)
    counts = f.op("Concat", counts, none, axis=1)
    columns = max(places) + 1
    order = np.full(columns, total)
    order[places] = np.arange(total)
    sources = f.constant(order, int64)
    result = f.term(counts).op("Gather", sources, axis=1)
    mode = op.attr("mode")
    if mode == "IDF":
        result = (result > 0).cast(float32)
    if mode != "TF" and weights:
        result = result * f.constant(weights, float32)
    shape = f.ints(*op.shape(0)[:-1], columns)
    return [f.op("Reshape", result.value, shape, allowzero=1)]


def _counts(
    op: OpCall,
    f: Fragment,
    x: Value,
    grams: Array,
) -> Value:
    """How often each of these n-grams occurs in each row of x."""
    rows, length = x.extents
    count, n = grams.shape
    none = f.constant(np.zeros((rows, count)), float32)
    if not op.attr("min_gram_length") <= n <= op.attr("max_gram_length"):
        return none
    total = f.term(none)
    distances = 1 if n == 1 else op.attr("max_skip_count") + 1
    for distance in range(1, distances + 1):
        span = length - (n - 1) * distance
        if span <= 0 or not count:
            break
        hit = _equal(f, x, 0, span, grams[:, 0])
        for k in range(1, n):
            hit = hit & _equal(f, x, k * distance, span, grams[:, k])
        found = hit.cast(float32)
        total = total + found.op("ReduceSum", f.ints(1), keepdims=0)
    return total.value


def _equal(f: Fragment, x: Value, first: int, span: int, items: Array) -> TensorTerm:
    """Which of the elements from `first` on are equal to which items: [rows, span, items]."""
    window = (f.ints(first), f.ints(first + span), f.ints(1))
    found = f.op("Slice", x, *window)
    column = f.reshape(found, x.extents[0], span, 1)
    return f.term(column).equals(f.constant(items, int64))


register(
    OpDef(
        "TfIdfVectorizer",
        _type,
        since=9,
        decompose=_vectorized,
    )
)
