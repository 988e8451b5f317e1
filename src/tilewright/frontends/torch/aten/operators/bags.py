"""Bags of rows of a table: their sums, means and maxima."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dtypes import int64
from tilewright.frontends.torch.aten.rules import AtenCall, positive, rule
from tilewright.graph.nodes import Value

_SUM, _MEAN, _MAX = range(3)


@rule("aten.embedding_bag", "aten._embedding_bag_forward_only")
def _embedding_bag(c: AtenCall) -> Sequence[Value | None]:
    """Each row is added to the result of its bag; rows of the padding index do not count."""
    weight = c.tensor("weight")
    indices = c.tensor("indices")
    rows = c.op("Gather", weight, indices, axis=0)
    mode = int(c["mode"])
    if c.has("per_sample_weights"):
        factors = c.tensor("per_sample_weights")
        factors = c.unsqueeze(factors, 1)
        rows = c.op("Mul", rows, factors)
    neutral = c.number(-math.inf if mode == _MAX else 0)
    there = c.op("Equal", indices, indices)
    padding = c["padding_idx"]
    if padding is not None and (
        padding >= 0 or c.name.startswith("aten.embedding_bag")
    ):
        skipped = positive(int(padding), int(c.of("weight").shape[0]))
        number = c.number(skipped, indices.dtype)
        without = c.op("Equal", indices, number)
        there = c.op("Not", without)
        wide = c.unsqueeze(there, 1)
        rows = c.op("Where", wide, rows, neutral)
    bags = _bag_of_each(c)
    bags = c.unsqueeze(bags, 1)
    shape = _shape(c)
    start = c.op("Expand", neutral, shape)
    reduction = "max" if mode == _MAX else "add"
    found = c.op("ScatterND", start, bags, rows, reduction=reduction)
    if mode == _SUM:
        return [found, None, None, None]
    ones = c.cast(there, c.dtype)
    zero = c.number(0)
    size = c.op("Slice", shape, c.ints(0), c.ints(1))
    none = c.op("Expand", zero, size)
    counts = c.op("ScatterND", none, bags, ones, reduction="add")
    counts = c.unsqueeze(counts, 1)
    if mode == _MEAN:
        divisor = c.op("Max", counts, c.number(1))
        found = c.op("Div", found, divisor)
    else:
        empty = c.op("Equal", counts, zero)
        found = c.op("Where", empty, zero, found)
    return [found, None, None, None]


def _offsets(c: AtenCall) -> Value:
    """Where each bag starts."""
    offsets = c.tensor("offsets", int64)
    if not c["include_last_offset"]:
        return offsets
    return c.op("Slice", offsets, c.ints(0), c.ints(-1), c.ints(0))


def _shape(c: AtenCall) -> Value:
    """The number of bags and the number of elements in a row."""
    count = c.op("Shape", _offsets(c))
    width = c.op("Shape", c.tensor("weight"), start=1, end=2)
    return c.op("Concat", count, width, axis=0)


def _bag_of_each(c: AtenCall) -> Value:
    """For each index its bag: one less than the number of bags that started up to it."""
    count = c.op("Shape", c.tensor("indices"))
    offsets = _offsets(c)
    one = c.number(1, int64)
    zero = c.number(0, int64)
    length = c.op("Add", count, c.ints(1))
    places = c.op("Expand", zero, length)
    ones = c.op("Expand", one, c.op("Shape", offsets))
    starts = c.op("ScatterElements", places, offsets, ones, axis=0, reduction="add")
    started = c.op("CumSum", starts, c.value(0, int64))
    first = c.op("Slice", started, c.ints(0), count, c.ints(0))
    return c.op("Sub", first, one)
