"""Mixtures of experts: rows counted and multiplied by group."""

from __future__ import annotations

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm


@rule("aten.histc")
def _histogram(c: AtenCall) -> Value:
    """The number of elements in each of some equal ranges; the last range includes its end."""
    low = float(c["min"])
    high = float(c["max"])
    bins = int(c["bins"])
    if low == high:
        raise c.refuse("its ranges depend on the elements")
    flat = c.reshape(c.tensor("self", c.dtype), [-1])
    x = TensorTerm(c, flat)
    place = (x - low) * bins / (high - low)
    place = place.op("Floor").op("Min", bins - 1)
    inside = (x >= low) & (x <= high)
    place = inside.chosen(place, -1)
    numbers = c.build.constant(np.arange(bins).astype(c.dtype.numpy))
    column = c.unsqueeze(place.value, 1)
    same = c.op("Equal", column, numbers)
    ones = c.cast(same, int64)
    counts = c.op("ReduceSum", ones, c.ints(0), keepdims=0)
    return c.cast(counts, c.dtype)


@rule("transformers.grouped_mm_fallback", "aten._grouped_mm")
def _grouped_product(c: AtenCall) -> Value:
    """Each row times the matrix of its group; `offs` holds the ends of the groups.

    A few rows read only the matrices of their groups. More rows are multiplied by all matrices,
    each of which is read once, and keep the product with their own. Rows without a group are zeros.
    """
    if c.has("weight"):
        names = ("input", "weight")
    else:
        names = ("self", "mat2")
    if c.has("bias") or not c.has("offs") or [c.rank(n) for n in names] != [2, 3]:
        raise c.refuse("its groups are not rows of a matrix")
    x, w = (c.tensor(n) for n in names)
    rows = c.extent(0, names[0])
    groups = c.extent(0, names[1])
    if rows is None or groups is None:
        raise c.refuse("its number of rows is known only at run time")
    ends = c.unsqueeze(c.tensor("offs", int64), 0)
    numbers = c.build.constant(np.arange(rows)[:, None])
    past = c.cast(c.op("GreaterOrEqual", numbers, ends), int64)
    axes = c.ints(1)
    group = c.op("ReduceSum", past, axes, keepdims=0)
    there = c.op("Less", group, c.number(groups, int64))
    group = c.op("Min", group, c.number(groups - 1, int64))
    if rows <= groups:
        own = c.op("Gather", w, group, axis=0)
        row = c.unsqueeze(x, 1)
        found = c.op("MatMul", row, own)
        axes = c.ints(1)
        found = c.op("Squeeze", found, axes)
    else:
        batch = c.unsqueeze(x, 0)
        every = c.op("MatMul", batch, w)
        row = c.build.constant(np.arange(rows))
        places = [c.unsqueeze(n, 1) for n in (group, row)]
        indices = c.op("Concat", *places, axis=1)
        found = c.op("GatherND", every, indices)
    axes = c.ints(1)
    keep = c.op("Unsqueeze", there, axes)
    return c.op("Where", keep, found, c.number(0))
