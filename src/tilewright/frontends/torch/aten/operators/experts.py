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
    flat = c.tensor("self", c.dtype)
    flat = c.reshape(flat, [-1])
    x = TensorTerm(c, flat)
    width = high - low
    place = (x - low) * bins / width
    place = place.op("Floor")
    place = place.op("Min", bins - 1)
    above = x >= low
    below = x <= high
    inside = above & below
    place = inside.chosen(place, -1)
    numbers = np.arange(bins)
    numbers = numbers.astype(c.dtype.numpy)
    each = c.build.constant(numbers)
    column = c.unsqueeze(place.value, 1)
    same = c.op("Equal", column, each)
    ones = c.cast(same, int64)
    axes = c.ints(0)
    counts = c.op("ReduceSum", ones, axes, keepdims=0)
    return c.cast(counts, c.dtype)


@rule("transformers.grouped_mm_fallback", "aten._grouped_mm")
def _grouped_product(c: AtenCall) -> Value:
    """Each row times the matrix of its group; `offs` holds the ends of the groups.

    Of two matrices, the groups are of the axis summed over: one product for each group.
    """
    if c.has("weight"):
        first, second = "input", "weight"
    else:
        first, second = "self", "mat2"
    ranks = c.rank(first), c.rank(second)
    known = ranks in ((2, 3), (2, 2))
    if c.has("bias") or not c.has("offs") or not known:
        raise c.refuse("its groups are not rows of a matrix")
    x = c.tensor(first)
    w = c.tensor(second)
    if ranks == (2, 3):
        rows = c.extent(0, first)
        return _times_own(c, x, w, rows)
    x = c.op("Transpose", x, perm=[1, 0])
    return _products_by_group(c, x, w)


@rule("transformers.grouped_mm_fallback_backward")
def _gradients_of_grouped_product(c: AtenCall) -> tuple[Value, Value]:
    """The gradients of the rows and of the matrices, which are zeros for an empty group."""
    x = c.tensor("input")
    w = c.tensor("weight")
    g = c.tensor("grad_output")
    rows = c.extent(0, "input")
    transposed = c.op("Transpose", w, perm=[0, 2, 1])
    of_rows = _times_own(c, g, transposed, rows)
    of_weights = _products_by_group(c, x, g)
    return of_rows, of_weights


def _times_own(c: AtenCall, x: Value, w: Value, rows: int | None) -> Value:
    """Each row of x (rows, k) times the matrix of its group in w (groups, k, n); zeros without.

    A few rows read only the matrices of their groups. More rows, or a number known only at run
    time, are multiplied by all matrices, each read once, and keep the product with their own.
    """
    groups = _count(c)
    row = _numbers(c, x)
    group = _group(c, row)
    count = c.number(groups, int64)
    last = c.number(groups - 1, int64)
    there = c.op("Less", group, count)
    group = c.op("Min", group, last)
    if rows is not None and rows <= groups:
        own = c.op("Gather", w, group, axis=0)
        single = c.unsqueeze(x, 1)
        found = c.op("MatMul", single, own)
        found = c.squeeze(found, 1)
    else:
        batch = c.unsqueeze(x, 0)
        every = c.op("MatMul", batch, w)
        group = c.unsqueeze(group, 1)
        row = c.unsqueeze(row, 1)
        indices = c.op("Concat", group, row, axis=1)
        found = c.op("GatherND", every, indices)
    keep = c.unsqueeze(there, 1)
    zero = c.number(0)
    return c.op("Where", keep, found, zero)


def _products_by_group(c: AtenCall, x: Value, g: Value) -> Value:
    """For each group, x (rows, k) transposed times g (rows, n), both of its rows: (groups, k, n).

    Both are masked: another group's infinity times zero would be NaN.
    """
    groups = _count(c)
    row = _numbers(c, x)
    group = _group(c, row)
    group = c.unsqueeze(group, 0, 2)
    numbers = np.arange(groups)
    column = numbers.reshape(-1, 1, 1)
    each = c.build.constant(column)
    own = c.op("Equal", group, each)
    zero = c.number(0)
    x = c.unsqueeze(x, 0)
    x = c.op("Where", own, x, zero)
    g = c.unsqueeze(g, 0)
    g = c.op("Where", own, g, zero)
    x = c.op("Transpose", x, perm=[0, 2, 1])
    return c.op("MatMul", x, g)


def _count(c: AtenCall) -> int:
    """The number of groups."""
    groups = c.extent(0, "offs")
    if groups is None:
        raise c.refuse("its number of groups is known only at run time")
    return groups


def _numbers(c: AtenCall, x: Value) -> Value:
    """The numbers of the rows of x, from 0."""
    extent = c.op("Shape", x, start=0, end=1)
    count = c.squeeze(extent, 0)
    zero = c.number(0, int64)
    one = c.number(1, int64)
    return c.op("Range", zero, count, one)


def _group(c: AtenCall, row: Value) -> Value:
    """The group of each row; the number of groups for a row past the last end."""
    row = c.unsqueeze(row, 1)
    ends = c.tensor("offs", int64)
    ends = c.unsqueeze(ends, 0)
    past = c.op("GreaterOrEqual", row, ends)
    past = c.cast(past, int64)
    axes = c.ints(1)
    return c.op("ReduceSum", past, axes, keepdims=0)
