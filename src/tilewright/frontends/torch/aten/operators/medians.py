"""Medians and modes. Of equal elements the first one is chosen, of a mode's the last one."""

from __future__ import annotations

import math

from tilewright.base.dtypes import int64
from tilewright.frontends.torch.aten.operators.reductions import least
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value


@rule("aten.median.default", "aten.nanmedian.default")
def _median(c: AtenCall) -> Value:
    if any(n == 0 for n in c.of("self").shape):
        raise c.refuse("it has no elements")
    flat = c.reshape(c.tensor(), [-1])
    found = _middle(c, flat, 0)
    return c.reshape(found, [])


@rule("aten.median.dim", "aten.nanmedian.dim")
def _median_and_place(c: AtenCall) -> list[Value]:
    x = c.tensor()
    if not c.rank():
        return [x, c.number(0, int64)]
    axis = c.axis()
    found = _middle(c, x, axis)
    same = c.op("Equal", x, found)
    if c.dtype.is_float:
        unknown = c.op("IsNaN", x)
        lost = c.op("IsNaN", found)
        both = c.op("And", unknown, lost)
        same = c.op("Or", same, both)
    chosen = c.cast(same, int64)
    place = c.op("ArgMax", chosen, axis=axis, keepdims=1)
    return _kept(c, [found, place], axis)


def _middle(c: AtenCall, x: Value, axis: int) -> Value:
    """The lower of the two elements in the middle; NaN if there is one that counts."""
    extent = c.op("Shape", x, start=axis, end=axis + 1)
    zero = c.value(0, int64)
    one = c.value(1, int64)
    two = c.value(2, int64)
    if not c.dtype.is_float:
        last = c.op("Sub", extent, one)
        place = c.op("Div", last, two)
        ordered = _sorted(c, x, extent, axis)
        return c.op("Gather", ordered, place, axis=axis)
    unknown = c.op("IsNaN", x)
    highest = c.number(math.inf)
    numbers = c.op("Where", unknown, highest, x)
    ordered = _sorted(c, numbers, extent, axis)
    axes = c.ints(axis)
    ones = c.cast(unknown, int64)
    missing = c.op("ReduceSum", ones, axes, keepdims=1)
    if "nanmedian" in c.name:
        there = c.op("Sub", extent, missing)
        last = c.op("Sub", there, one)
        before = c.op("Max", last, zero)
        place = c.op("Div", before, two)
        found = c.op("GatherElements", ordered, place, axis=axis)
        lost = c.op("Equal", there, zero)
    else:
        last = c.op("Sub", extent, one)
        place = c.op("Div", last, two)
        found = c.op("Gather", ordered, place, axis=axis)
        lost = c.op("Greater", missing, zero)
    nothing = c.number(math.nan)
    return c.op("Where", lost, nothing, found)


def _sorted(c: AtenCall, x: Value, extent: Value, axis: int) -> Value:
    found = c.build.ops(
        "TopK",
        x,
        extent,
        count=2,
        axis=axis,
        largest=0,
        sorted=1,
    )
    return found[0]


@rule("aten.mode")
def _mode(c: AtenCall) -> list[Value]:
    """The smallest of the most frequent elements."""
    x = c.tensor()
    if not c.rank():
        return [x, c.number(0, int64)]
    axis = c.axis()
    axes = c.ints(axis)
    across = c.ints(axis + 1)
    rows = c.op("Unsqueeze", x, across)
    columns = c.op("Unsqueeze", x, axes)
    pairs = c.op("Equal", rows, columns)
    same = c.cast(pairs, int64)
    counts = c.op("ReduceSum", same, across, keepdims=0)
    most = c.op("ReduceMax", counts, axes, keepdims=1)
    frequent = c.op("Equal", counts, most)
    neutral = c.number(least(c.dtype, largest=False))
    candidates = c.op("Where", frequent, x, neutral)
    found = c.op("ReduceMin", candidates, axes, keepdims=1)
    equal = c.op("Equal", x, found)
    chosen = c.cast(equal, int64)
    how = {"axis": axis, "keepdims": 1, "select_last_index": 1}
    place = c.op("ArgMax", chosen, **how)
    return _kept(c, [found, place], axis)


def _kept(c: AtenCall, results: list[Value], axis: int) -> list[Value]:
    """Results with their reduced axis, if the program keeps it."""
    if c["keepdim"]:
        return results
    return [c.squeeze(v, axis) for v in results]
