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

    Of two matrices, the groups are of the axis summed over: one product for each group.
    """
    if c.has("weight"):
        names = ("input", "weight")
    else:
        names = ("self", "mat2")
    ranks = [c.rank(n) for n in names]
    if c.has("bias") or not c.has("offs") or ranks not in ([2, 3], [2, 2]):
        raise c.refuse("its groups are not rows of a matrix")
    x, w = (c.tensor(n) for n in names)
    if ranks == [2, 3]:
        rows = c.extent(0, names[0])
        return _times_own(c, x, w, rows)
    x = c.op("Transpose", x, perm=[1, 0])
    return _products_by_group(c, x, w)


@rule("transformers.grouped_mm_fallback_backward")
def _gradients_of_grouped_product(c: AtenCall) -> tuple[Value, Value]:
    """The gradients of the rows and of the matrices, which are zeros for an empty group."""
    x, w, g = (c.tensor(n) for n in ("input", "weight", "grad_output"))
    rows = c.extent(0, "input")
    transposed = c.op("Transpose", w, perm=[0, 2, 1])
    of_rows = _times_own(c, g, transposed, rows)
    return of_rows, _products_by_group(c, x, g)


def _times_own(c: AtenCall, x: Value, w: Value, rows: int | None) -> Value:
    """Each row of x (rows, k) times the matrix of its group in w (groups, k, n); zeros without.

    A few rows read only the matrices of their groups. More rows, or a number known only at run
    time, are multiplied by all matrices, each read once, and keep the product with their own.
    """
    groups = _count(c)
    row = _numbers(c, x)
    group = _group(c, row)
    there = c.op("Less", group, c.number(groups, int64))
    group = c.op("Min", group, c.number(groups - 1, int64))
    if rows is not None and rows <= groups:
        own = c.op("Gather", w, group, axis=0)
        single = c.unsqueeze(x, 1)
        found = c.op("MatMul", single, own)
        found = c.squeeze(found, 1)
    else:
        batch = c.unsqueeze(x, 0)
        every = c.op("MatMul", batch, w)
        places = [c.unsqueeze(n, 1) for n in (group, row)]
        indices = c.op("Concat", *places, axis=1)
        found = c.op("GatherND", every, indices)
    keep = c.unsqueeze(there, 1)
    return c.op("Where", keep, found, c.number(0))


def _products_by_group(c: AtenCall, x: Value, g: Value) -> Value:
    """For each group, x (rows, k) transposed times g (rows, n), both of its rows: (groups, k, n).

    Both are masked: another group's infinity times zero would be NaN.
    """
    groups = _count(c)
    row = _numbers(c, x)
    group = _group(c, row)
    group = c.unsqueeze(group, 0, 2)
    numbers = c.build.constant(np.arange(groups)[:, None, None])
    own = c.op("Equal", group, numbers)
    x, g = (
        c.op("Where", own, spread, c.number(0))
        for spread in (c.unsqueeze(x, 0), c.unsqueeze(g, 0))
    )
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
    return c.op("Range", c.number(0, int64), count, c.number(1, int64))


def _group(c: AtenCall, row: Value) -> Value:
    """The group of each row; the number of groups for a row past the last end."""
    row = c.unsqueeze(row, 1)
    ends = c.unsqueeze(c.tensor("offs", int64), 0)
    past = c.cast(c.op("GreaterOrEqual", row, ends), int64)
    return c.op("ReduceSum", past, c.ints(1), keepdims=0)
