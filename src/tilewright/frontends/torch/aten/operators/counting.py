"""Distinct elements and counts: results whose extents depend on the data."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import bfloat16, float32, int64
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

Several = list[Value | None]


@rule("aten.bincount")
def _counts(c: AtenCall) -> Value:
    """How often each number occurs, or the sums of the weights."""
    x = c.tensor("self", int64)
    axes = c.ints(0)
    largest = c.op("ReduceMax", x, axes, keepdims=1)
    least = c.sizes([c["minlength"]])
    above = c.op("Add", largest, c.ints(1))
    size = c.op("Max", above, least)
    zero = c.number(0)
    zeros = c.op("Expand", zero, size)
    if c.has("weights"):
        values = c.tensor("weights", c.dtype)
    else:
        shape = c.op("Shape", x)
        values = c.op("Expand", c.number(1), shape)
    return c.op("ScatterElements", zeros, x, values, axis=0, reduction="add")


@rule("aten._unique2")
def _unique(c: AtenCall) -> Several:
    """The distinct elements in order; the inverse is in the shape of the operand."""
    x = c.reshape(c.tensor(), [-1])
    found, inverse, counts = _sorted_runs(c, x, x, 0)
    shape = c.op("Shape", c.tensor())
    inverse = c.op("Reshape", inverse, shape)
    return [found, inverse, counts]


@rule("aten.unique_dim")
def _unique_slices(c: AtenCall) -> Several:
    """The distinct slices in order. Slices with NaN are distinct, which they are not in ONNX."""
    x = c.tensor()
    axis = c.axis()
    # ONNX's operator does not take bfloat16, which float32 keeps in order.
    key = c.cast(x, float32) if x.dtype is bfloat16 else x
    *_, order, _ = c.build.ops("Unique", key, count=4, axis=axis, sorted=1)
    return list(_sorted_runs(c, x, order, axis))


def _sorted_runs(c: AtenCall, x: Value, key: Value, axis: int) -> Sequence[Value]:
    """The runs of slices sorted by a key; the inverse is in the original order."""
    size = c.op("Shape", key)
    _, places = c.build.ops("TopK", key, size, count=2, axis=0, largest=0, sorted=1)
    ordered = c.op("Gather", x, places, axis=axis)
    found, group, counts = _runs(c, ordered, axis)
    inverse = c.op("ScatterElements", places, places, group, axis=0)
    return found, inverse, counts


@rule("aten.unique_consecutive")
def _unique_runs(c: AtenCall) -> Several:
    """Runs of equal elements, or of equal slices along an axis."""
    if c.has("dim"):
        return list(_runs(c, c.tensor(), c.axis()))
    x = c.reshape(c.tensor(), [-1])
    found, group, counts = _runs(c, x, 0)
    shape = c.op("Shape", c.tensor())
    group = c.op("Reshape", group, shape)
    return [found, group, counts]


@rule("aten.unique_dim_consecutive")
def _unique_slice_runs(c: AtenCall) -> Several:
    return list(_runs(c, c.tensor(), c.axis()))


def _runs(c: AtenCall, x: Value, axis: int) -> Sequence[Value]:
    """The first slice of each run of equal ones, the run of each slice, and their lengths."""
    size = c.op("Shape", x, start=axis, end=axis + 1)
    zero = c.number(0, int64)
    one = c.number(1, int64)
    end = c.squeeze(size, 0)
    numbers = c.op("Range", zero, end, one)
    one_less = c.op("Sub", numbers, one)
    before = c.op("Max", one_less, zero)
    earlier = c.op("Gather", x, before, axis=axis)
    differs = ~TensorTerm(c, x).equals(earlier)
    others = [n for n in range(len(x.shape or ())) if n != axis]
    if others:
        bits = differs.cast(int64).value
        count = c.op("ReduceMax", bits, c.ints(*others), keepdims=0)
        differs = TensorTerm(c, count) > 0
    first = TensorTerm(c, numbers).equals(0)
    starts = first | differs
    nonzero = c.op("NonZero", starts.value)
    positions = c.squeeze(nonzero, 0)
    found = c.op("Gather", x, positions, axis=axis)
    number = c.op("CumSum", starts.cast(int64).value, zero)
    group = c.op("Sub", number, one)
    none = c.op("Mul", positions, zero)
    ones = c.op("Expand", one, size)
    how = {"axis": 0, "reduction": "add"}
    counts = c.op("ScatterElements", none, group, ones, **how)
    return found, group, counts
