"""Elements selected by other tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import DType, bool_, int64, uint8
from tilewright.frontends.torch.aten.operators.arithmetic import floor_divided
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

_REDUCTIONS = {
    None: "none",
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
    "mean": "add",
}


@rule("aten.embedding")
def _embedding(c: AtenCall) -> Value:
    return c.op("Gather", c.tensor("weight"), c.tensor("indices"), axis=0)


@rule("aten.index_select")
def _index_select(c: AtenCall) -> Value:
    index = c.tensor("index")
    if not c.rank("index"):
        axes = c.ints(0)
        index = c.op("Unsqueeze", index, axes)
    if not c.rank():
        return c.tensor()
    return c.op("Gather", c.tensor(), index, axis=c.axis())


@rule("aten.gather")
def _gather(c: AtenCall) -> Value:
    index = c.tensor("index")
    fixed = c.fixed()
    if fixed is not None and 0 in fixed:
        nothing = np.zeros(fixed, c.dtype.numpy)
        return c.build.constant(nothing)
    if not c.rank():
        return c.op("Expand", c.tensor(), c.op("Shape", index))
    if not c.rank("index"):
        return c.op("Gather", c.tensor(), index, axis=0)
    return c.op("GatherElements", c.tensor(), index, axis=c.axis())


@rule("aten.scatter", "aten.scatter_add", "aten.scatter_reduce")
def _scatter(c: AtenCall) -> Value:
    name = c.name.split(".")[1]
    reduction = "sum" if name == "scatter_add" else c["reduce"]
    if reduction not in _REDUCTIONS:
        raise c.refuse(f"it combines by {reduction!r}")
    if any(type(n) is int and not n for n in c.of("index").shape):  # of any rank
        return c.tensor()
    into, index = (_with_axes(c, n) for n in ("self", "index"))
    axis = c.axis() if c.rank() else 0
    size = c.op("Shape", index)
    if not c.has("src"):
        values = c.op("Expand", c.value(c["value"], c.dtype), size)
    elif c.of("src").shape == c.of("index").shape:
        values = _with_axes(c, "src")
    else:
        begin = c.ints(*[0] * max(c.rank("src"), 1))
        values = c.op("Slice", _with_axes(c, "src"), begin, size)

    def combined(x: Value, values: Value, reduction: str) -> Value:
        """Elements that do not count start from the value that changes nothing."""
        if c["include_self"] is False:
            start = c.op("Expand", c.number(_neutral(reduction, c.dtype)), size)
            x = c.op("ScatterElements", x, index, start, axis=axis)
        how = {"axis": axis, "reduction": reduction}
        return c.op("ScatterElements", x, index, values, **how)

    found = combined(into, values, _REDUCTIONS[reduction])
    if reduction == "mean":
        one = c.number(1)
        ones = c.op("Expand", one, c.op("Shape", into))
        counts = combined(ones, c.op("Expand", one, size), "add")
        if c.dtype.is_float:
            found = c.op("Div", found, counts)
        else:
            found = floor_divided(TensorTerm(c, found), TensorTerm(c, counts)).value
    return found if c.rank() else c.reshape(found, [])


def _with_axes(c: AtenCall, name: str) -> Value:
    """A number has one axis among the operands of ONNX's operator."""
    if c.rank(name):
        return c.tensor(name)
    return c.reshape(c.tensor(name), [1])


def _neutral(reduction: str, dtype: DType) -> float:
    """The value that changes no other by a reduction of `ScatterElements`."""
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    ends = (-math.inf, math.inf) if dtype.is_float else (dtype.min, dtype.max)
    return ends[reduction == "min"]


@rule("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _index(c: AtenCall) -> Value:
    """`self[:, i, j]`: move the indexed axes to the front, gather once, and order the axes."""
    places, indices, chosen = _indices(c)
    if len(places) == 1:
        return c.op("Gather", c.tensor(), indices[0], axis=places[0])
    rank = c.rank()
    rest = [n for n in range(rank) if n not in places]
    front = [*places, *rest]
    if front == list(range(rank)):
        x = c.tensor()
    else:
        x = c.op("Transpose", c.tensor(), perm=front)
    found = c.op("GatherND", x, _joined(c, indices))
    together = places == list(range(places[0], places[-1] + 1))
    if not together or places[0] == 0:
        return found
    # Adjacent axes are replaced in place.
    before = len([n for n in rest if n < places[0]])
    order = [*range(chosen, chosen + before), *range(chosen)]
    order += range(chosen + before, chosen + len(rest))
    return c.op("Transpose", found, perm=order)


@rule("aten.index_put", "aten._unsafe_index_put")
def _index_put(c: AtenCall) -> Value:
    given = c["indices"]
    x = c.tensor()
    values = c.cast(c["values"], c.dtype)
    masks = [n for n, v in enumerate(given) if v is not None]
    if len(masks) == 1 and _is_mask(given[masks[0]]) and not c["accumulate"]:
        mask = c.cast(given[masks[0]], bool_)
        if all(n == 1 for n in c.of("values").shape):
            return _masked_put(c, x, mask, masks[0], values)
    places, numbers, chosen = _indices(c)
    indices = _joined(c, numbers)
    values = _spread_values(c, indices, places, values, chosen)
    rest = [n for n in range(c.rank()) if n not in places]
    front = [*places, *rest]
    reduction = "add" if c["accumulate"] else "none"
    if front == list(range(c.rank())):
        return c.op("ScatterND", x, indices, values, reduction=reduction)
    turned = c.op("Transpose", x, perm=front)
    found = c.op("ScatterND", turned, indices, values, reduction=reduction)
    perm = [front.index(n) for n in range(c.rank())]
    return c.op("Transpose", found, perm=perm)


def _indices(c: AtenCall) -> tuple[list[int], list[Value], int]:
    """The indexed axes, their indices, and the number of axes of these after broadcasting.

    A mask indexes its axes by the positions of its true elements.
    """
    places: list[int] = []
    found: list[Value] = []
    chosen = 0
    axis = 0
    for index, node in zip(c["indices"], c.given["indices"], strict=True):
        if index is None:
            axis += 1
            continue
        rank = len(node.meta["val"].shape)
        if _is_mask(index):
            if not rank:
                raise c.refuse("its mask is one number, which adds an axis")
            numbers = _positions(c, index, rank)
        else:
            numbers = [c.cast(index, int64)]
        chosen = max(chosen, 1 if _is_mask(index) else rank)
        places += range(axis, axis + len(numbers))
        found += numbers
        axis += len(numbers)
    return places, found, chosen


def _positions(c: AtenCall, mask: Value, rank: int) -> list[Value]:
    """For each axis of a mask, the positions of its true elements in order."""
    numbers = c.op("NonZero", c.cast(mask, bool_))
    rows = [numbers]
    if rank > 1:
        rows = c.build.ops("Split", numbers, count=rank, axis=0, num_outputs=rank)
    return [c.squeeze(row, 0) for row in rows]


def _spread_values(
    c: AtenCall, indices: Value, places: list[int], values: Value, chosen: int
) -> Value:
    """The values broadcast to the written part, with the axes of the indices first.

    Indices of adjacent axes replace these axes in place, others come first.
    """
    x = c.tensor()
    first = places[0]
    last = places[-1]
    batch = c.op("Shape", indices, end=-1)
    if places != list(range(first, last + 1)):
        lead = []
        tail = [n for n in range(c.rank()) if n not in places]
    else:
        lead = list(range(first))
        tail = list(range(last + 1, c.rank()))
    extents = c.op("Shape", x)
    parts = [
        c.op("Gather", extents, c.ints(*lead), axis=0) if lead else None,
        batch,
        c.op("Gather", extents, c.ints(*tail), axis=0) if tail else None,
    ]
    shape = [p for p in parts if p is not None]
    if len(shape) == 1:
        sizes = shape[0]
    else:
        sizes = c.op("Concat", *shape, axis=0)
    wide = c.op("Expand", values, sizes)
    if not lead:
        return wide
    axes = len(lead) + chosen + len(tail)
    order = [*range(len(lead), len(lead) + chosen), *range(len(lead))]
    return c.op("Transpose", wide, perm=[*order, *range(len(order), axes)])


def _masked_put(
    c: AtenCall,
    x: Value,
    mask: Value,
    place: int,
    values: Value,
) -> Value:
    """A masked write of one value is a Where."""
    behind = c.rank() - place - len(mask.shape or ())
    if behind:
        axes = c.ints(*(-1 - n for n in range(behind)))
        wide = c.op("Unsqueeze", mask, axes)
    else:
        wide = mask
    if c.rank("values"):
        values = c.reshape(values, [])
    return c.op("Where", wide, values, x)


def _is_mask(index: Value | None) -> bool:
    """PyTorch treats bytes as booleans here."""
    return index is not None and index.dtype in (bool_, uint8)


def _joined(c: AtenCall, indices: Sequence[Value]) -> Value:
    """Indices of several axes, broadcast, along the last axis of one tensor."""
    if len(indices) > 1:
        total = indices[0]
        for other in indices[1:]:
            total = c.op("Add", total, other)
        shape = c.op("Shape", total)
        indices = [c.op("Expand", i, shape) for i in indices]
    last = [c.unsqueeze(i, -1) for i in indices]
    if len(last) == 1:
        return last[0]
    return c.op("Concat", *last, axis=-1)


@rule("aten.one_hot")
def _one_hot(c: AtenCall) -> Value:
    classes = c["num_classes"]
    if not isinstance(classes, int) or classes < 0:
        raise c.refuse("the number of classes is known only at run time")
    values = c.ints(0, 1)
    return c.op("OneHot", c.tensor(), c.value(classes, int64), values, axis=-1)


@rule("aten.nonzero")
def _nonzero(c: AtenCall) -> Value:
    x = c.tensor()
    places = c.op("NonZero", x)
    return c.op("Transpose", places, perm=[1, 0])


@rule("aten.masked_select")
def _masked_select(c: AtenCall) -> Value:
    """The elements in order; both operands have one shape after broadcasting."""
    mask = c.tensor("mask")
    x = c.tensor()
    shape = c.op("Shape", c.op("And", c.op("Equal", x, x), mask))
    flat = [c.reshape(c.op("Expand", v, shape), [-1]) for v in (x, mask)]
    return c.op("Gather", flat[0], _positions(c, flat[1], 1)[0], axis=0)


@rule("aten.masked_scatter")
def _masked_scatter(c: AtenCall) -> Value:
    """The elements of `source` in order, one for each element of the mask."""
    x = c.tensor()
    shape = c.op("Shape", c.op("And", c.op("Equal", x, x), c.tensor("mask")))
    mask = c.op("Expand", c.tensor("mask"), shape)
    count = c.op("CumSum", c.cast(c.reshape(mask, [-1]), int64), c.value(0, int64))
    last = c.op("Sub", count, c.value(1, int64))
    places = c.op("Max", last, c.value(0, int64))
    source = c.tensor("source")
    flat = c.reshape(source, [-1])
    new = c.op("Gather", flat, places, axis=0)
    return c.op("Where", mask, c.op("Reshape", new, shape), x)


@rule("aten.put")
def _put(c: AtenCall) -> Value:
    """Values written to places of the flattened tensor."""
    index = c.tensor("index")
    index = c.reshape(index, [-1])
    source = c.tensor("source", c.dtype)
    source = c.reshape(source, [-1])
    reduction = "add" if c["accumulate"] else "none"
    x = c.tensor()
    flat = c.reshape(x, [-1])
    found = c.op("ScatterElements", flat, index, source, axis=0, reduction=reduction)
    return c.op("Reshape", found, c.op("Shape", x), allowzero=1)
