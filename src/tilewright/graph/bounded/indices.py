"""Rules of operators that read or write at computed positions, and of those that find positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.base.dtypes import DType, int64
from tilewright.graph.bounded.context import BoundedContext, Results, rule
from tilewright.graph.bounded.extents import (
    BoundedExtent,
    Dim,
    Dims,
    is_open,
    most,
    storage,
)
from tilewright.graph.bounded.parts import cut, nonzero
from tilewright.graph.bounded.shapes import product, reshaped
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.broadcasting import replaced
from tilewright.graph.ops.open_extents import DOMAIN


def _indexed(
    ctx: BoundedContext,
    op: Operation,
    into: Dims,
    dims: Dims,
) -> Results | None:
    """The operator with checked indices as operand 1. into: the extents that they index."""
    if not all(storage(into)):
        return None
    index = ctx.builder.index(ctx.call(op).value(1), into)
    operands = (op.inputs[0], index, *op.inputs[2:])
    return ctx.on_memory(replace(op, inputs=operands), dims)


@rule("Gather")
def gather(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Any axis and any indices."""
    data = ctx.dims(op)
    index = ctx.dims(op, 1)
    axis = ctx.axis(op)
    dims = (*data[:axis], *index, *data[axis + 1 :])
    return _indexed(ctx, op, (data[axis],), dims)


@rule("GatherElements")
def gather_elements(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """The data and indices must agree along all other axes."""
    data = ctx.dims(op)
    index = ctx.dims(op, 1)
    axis = ctx.axis(op)
    if not _agree(data, index, axis):
        return None
    return _indexed(ctx, op, (data[axis],), index)


def _agree(
    data: Dims,
    index: Dims,
    axis: int,
) -> bool:
    """Whether the indices fit the data along all axes but one."""
    pairs = enumerate(zip(data, index, strict=True))
    return all(a == axis or d is n or d == n for a, (d, n) in pairs)


@rule("GatherND")
def gather_nd(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Each row of the last axis of the indices is a position in that many axes."""
    data = ctx.dims(op)
    index = ctx.dims(op, 1)
    batch = int(op.attr("batch_dims", 0))
    depth = index[-1]
    if not isinstance(depth, int) or not depth or is_open(data[:batch]):
        return None
    into = data[batch : batch + depth]
    return _indexed(ctx, op, into, (*index[:-1], *data[batch + depth :]))


@rule("ScatterND")
def scatter_nd(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Updates past the count of the indices go to a spare row after the data, which is cut off."""
    data = ctx.dims(op)
    index = ctx.dims(op, 1)
    depth = index[-1]
    if not isinstance(depth, int) or not depth or len(data) < depth:
        return None
    if ctx.dims(op, 2) != (*index[:-1], *data[depth:]):
        return None
    return _scattered(ctx, op, 0, data[:depth])


@rule("ScatterElements")
def scatter_elements(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """As ScatterND, along one axis."""
    axis = ctx.axis(op)
    data = ctx.dims(op)
    index = ctx.dims(op, 1)
    if len(index) != len(data) or ctx.dims(op, 2) != index:
        return None
    pairs = enumerate(zip(data, index, strict=True))
    if any(
        a != axis and (isinstance(d, BoundedExtent) or most(n) > d)
        for a, (d, n) in pairs
    ):
        return None
    return _scattered(ctx, op, axis, (data[axis],))


def _scattered(
    ctx: BoundedContext,
    op: Operation,
    axis: int,
    into: Dims,
) -> Results | None:
    b, (x, indices, updates) = ctx.builder, op.inputs
    assert x is not None and indices is not None
    dims = b.dims(x)
    memory = storage(dims)
    row = tuple(1 if a == axis else n for a, n in enumerate(memory))
    if not all(storage(into)) or not all(row) or x.dtype is None:
        return None
    index = b.index(indices, into, spare=1)
    inside = b.inside(b.dims(indices))
    spare = b.constant(np.zeros(row), x.dtype)
    whole = b.op("Concat", x, spare, axis=axis)
    if inside is not None:
        behind = _behind(len(into), memory[axis], op)
        index = b.op("Where", inside, index, b.constant(behind))
    done = b.typer.apply(replace(op, inputs=(whole, index, updates)))[0]
    assert done is not None
    return [b.sized(cut(ctx, done, axis, 0, memory[axis], 1), dims)]


def _behind(
    depth: int,
    extent: int,
    op: Operation,
) -> list[int] | int:
    """The position of the spare row."""
    return [extent] + [0] * (depth - 1) if op.qualified == "ScatterND" else extent


@rule("NonZero")
def non_zero(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """A kernel counts the nonzero elements."""
    found = nonzero(ctx, ctx.call(op).value(0))
    return None if found is None else [found]


@rule("NonMaxSuppression")
def non_max_suppression(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """A kernel counts the boxes that it selects; the number of candidates may be open."""
    b = ctx.builder
    boxes = ctx.dims(op)
    scores = ctx.dims(op, 1)
    if is_open((boxes[0], *scores[:2])) or boxes[1] is not scores[2] != boxes[1]:
        return None
    operands = [*op.inputs, *[None] * (5 - len(op.inputs))]
    if isinstance(boxes[1], BoundedExtent):
        operands.append(b.scalar(boxes[1]))
    center = op.attr("center_point_box", 0)
    rows, count = b.ops(
        op.op_type, *operands, count=2, domain=DOMAIN, center_point_box=center
    )
    return [b.sized(rows, (b.extent(count, rows.extents[0]), 3))]


@rule("Unique")
def unique(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """A kernel counts the distinct slices."""
    b = ctx.builder
    x = ctx.call(op).value(0)
    axis = op.attr("axis")
    if axis is None:
        flat = reshaped(ctx, x, [product(ctx, b.dims(x))])
        if flat is None:
            return None
        x, axis = flat, 0
    dims = b.dims(x)
    axis = axis % len(dims)
    free = [d for a, d in enumerate(dims) if a != axis]
    if is_open(free) or 0 in free or not _ordered(x.dtype):
        return None
    count = [b.scalar(dims[axis])] if isinstance(dims[axis], BoundedExtent) else []
    ordered = op.attr("sorted", 1)
    how = {"axis": axis, "sorted": ordered}
    made = b.ops("Unique", x, *count, count=5, domain=DOMAIN, **how)
    found = b.extent(made[4], storage(dims)[axis])
    after = replaced(dims, axis, found)
    extents: list[Dims] = [after, (found,), (dims[axis],), (found,)]
    results: Results = [b.sized(v, d) for v, d in zip(made, extents, strict=False)]
    return results[: len(op.outputs)]


def _ordered(dtype: DType | None) -> bool:
    """Whether a kernel can order such elements: neither strings nor complex numbers."""
    return dtype is not None and (dtype.is_bool or dtype.is_int or dtype.is_float)


@rule("TopK")
def top_k(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """TopK with k and the extent known only at run time; a kernel is told the count."""
    b = ctx.builder
    x = ctx.call(op).value(0)
    axis = ctx.axis(op, -1)
    dims = b.dims(x)
    given = ctx.ints(op, 1)
    k: Dim
    if op.version < 10:
        return None
    if given is None:
        k = _scalar(ctx, ctx.call(op).value(1), most(dims[axis]))
    else:
        k = given[0]
    k = b.require(k, 0, dims[axis])
    operands = (x, b.constant([max(most(k), 0)]))
    after = replaced(dims, axis, k)
    if not isinstance(dims[axis], BoundedExtent):
        return ctx.on_memory(replace(op, inputs=operands), after)
    largest = op.attr("largest", 1)
    how = {"axis": axis, "largest": largest, "label": op.label}
    found = b.ops(
        op.op_type, *operands, b.scalar(dims[axis]), count=2, domain=DOMAIN, **how
    )
    return [b.sized(v, after) for v in found[: len(op.outputs)]]


def _scalar(
    ctx: BoundedContext,
    v: Value,
    high: int,
) -> BoundedExtent:
    """The only element of a tensor; nothing but an upper bound `high` is known of it."""
    b = ctx.builder
    shaped = b.op("Reshape", b.op("CastLike", v, b.constant(0)), b.constant([], int64))
    return BoundedExtent(shaped, -(1 << 62), 1 << 62)


@rule("RoiAlign")
def roi_align(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Any number of regions."""
    b = ctx.builder
    regions = ctx.call(op).value(1)
    images = ctx.call(op).value(2)
    if is_open(ctx.dims(op)) or not all(storage(ctx.dims(op))):
        return None
    index = b.index(images, ctx.dims(op)[:1])
    operands = (op.inputs[0], b.filled(regions, 0), index)
    found = b.typer.apply(replace(op, inputs=operands))[0]
    assert found is not None
    return [b.sized(found, (b.dims(regions)[0], *found.extents[1:]))]
