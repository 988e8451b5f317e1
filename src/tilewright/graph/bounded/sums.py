"""Rules of operators that combine elements along an axis: those past a count become neutral."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.graph.bounded.context import BoundedContext, Results, rule
from tilewright.graph.bounded.extents import BoundedExtent, Dim, Dims, is_open
from tilewright.graph.bounded.shapes import broadcast, product
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.reduce import keeps, reduced_axes, reduced_shape

Fill = Callable[[DType], float | int | bool]


def lowest(dtype: DType) -> float | int | bool:
    """A value that no element is below."""
    if dtype.is_bool:
        return False
    return -np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> float | int | bool:
    """A value that no element is above."""
    if dtype.is_bool:
        return True
    return np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).max)


def zero(dtype: DType) -> int:
    """The value that adds nothing."""
    return 0


# For each reduction, its identity and the version since which its axes are an input.
_REDUCTIONS: dict[str, tuple[Fill, int]] = {
    "ReduceSum": (zero, 13),
    "ReduceL1": (zero, 18),
    "ReduceL2": (zero, 18),
    "ReduceSumSquare": (zero, 18),
    "ReduceLogSumExp": (lowest, 18),
    "ReduceProd": (lambda dtype: 1, 18),
    "ReduceMax": (lowest, 18),
    "ReduceMin": (highest, 18),
    "ReduceMean": (zero, 18),
}


@rule(*_REDUCTIONS)
def reduction(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Elements past the count become the reduction's identity."""
    b, call = ctx.builder, ctx.call(op)
    fill, since = _REDUCTIONS[op.qualified]
    x = call.value(0)
    dims = ctx.dims(op)
    if op.version >= since and call.has(1) and ctx.numbers(op, 1) is None:
        return None
    axes = reduced_axes(call, len(dims), since)
    after = reduced_shape(dims, axes, keeps(call))  # type: ignore[arg-type]
    open_axes = [a for a in axes if isinstance(dims[a], BoundedExtent)]
    assert x.dtype is not None
    if not open_axes:
        return ctx.on_memory(op, after)
    if op.qualified == "ReduceMean":
        return _mean(ctx, op, axes, after)
    operands = (b.filled(x, fill(x.dtype), open_axes), *op.inputs[1:])
    return ctx.on_memory(replace(op, inputs=operands), after)


def _mean(
    ctx: BoundedContext,
    op: Operation,
    axes: list[int],
    after: Dims,
) -> Results | None:
    """The sum divided by the count, in floats, so that an empty mean is NaN."""
    b = ctx.builder
    x = ctx.call(op).value(0)
    dims = ctx.dims(op)
    if x.dtype is None or not x.dtype.is_float:
        return None
    keep = int(keeps(ctx.call(op)))
    places = b.constant(axes)
    total = b.op("ReduceSum", b.filled(x, 0, axes), places, keepdims=keep)
    elements = product(ctx, [dims[a] for a in axes])
    count = b.op("CastLike", b.scalar(elements), x)
    mean = b.op("Div", total, count)
    return [b.sized(mean, after)]


@rule("ArgMax", "ArgMin")
def arg_extreme(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """The first of equal elements wins, so those past the count, being last, never do."""
    b = ctx.builder
    x = ctx.call(op).value(0)
    dims = ctx.dims(op)
    axis = ctx.axis(op)
    after = reduced_shape(dims, [axis], keeps(ctx.call(op)))  # type: ignore[arg-type]
    last = op.attr("select_last_index", 0)
    if last and isinstance(dims[axis], BoundedExtent):
        return None
    assert x.dtype is not None
    fill = lowest if op.qualified == "ArgMax" else highest
    operands = (b.filled(x, fill(x.dtype), [axis]), *op.inputs[1:])
    return ctx.on_memory(replace(op, inputs=operands), after)


@rule("Softmax", "LogSoftmax")
def softmax(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Softmax along one axis, as since version 13."""
    b = ctx.builder
    x = ctx.call(op).value(0)
    axis = ctx.axis(op, -1)
    if op.version < 13 or x.dtype is None:
        return None
    operand = b.filled(x, lowest(x.dtype), [axis])
    return ctx.on_memory(replace(op, inputs=(operand,)), ctx.dims(op))


@rule("CumSum")
def cumulative_sum(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Forward only, so that elements past the count do not affect those before it."""
    axis = ctx.numbers(op, 1)
    dims = ctx.dims(op)
    if axis is None:
        return None
    backward = op.attr("reverse", 0)
    if backward and isinstance(dims[axis[0]], BoundedExtent):
        return None
    return ctx.on_memory(op, dims)


@rule("MatMul")
def product_of_matrices(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Along an open extent, set both operands to 0 past the count, as 0 times NaN is NaN."""
    left = ctx.dims(op)
    right = ctx.dims(op, 1)
    if len(left) < 2 or len(right) < 2:
        return None
    batch = broadcast([left[:-2], right[:-2]]) if max(len(left), len(right)) > 2 else ()
    if batch is None:
        return None
    operands = _summed(ctx, op, len(left) - 1, len(right) - 2)
    if operands is None:
        return None
    dims = (*batch, left[-2], right[-1])
    return ctx.on_memory(replace(op, inputs=operands), dims)


def _summed(
    ctx: BoundedContext,
    op: Operation,
    left: int,
    right: int,
) -> tuple[Value, Value] | None:
    """Both operands with zeros past the count along the contracted axes."""
    b = ctx.builder
    one, other = (ctx.call(op).value(n) for n in (0, 1))
    end: Dim = b.dims(one)[left]
    other_end: Dim = b.dims(other)[right]
    if end is not other_end and end != other_end:
        return None
    return b.filled(one, 0, [left]), b.filled(other, 0, [right])


@rule("Gemm")
def gemm(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """As MatMul, plus the third operand."""
    left = ctx.dims(op)
    right = ctx.dims(op, 1)
    rows, inner = (1, 0) if op.attr("transA", 0) else (0, 1)
    across, columns = (1, 0) if op.attr("transB", 0) else (0, 1)
    operands = _summed(ctx, op, inner, across)
    dims = (left[rows], right[columns])
    if operands is None:
        return None
    third = op.inputs[2:]
    if third and third[0] is not None:
        if broadcast([dims, ctx.dims(op, 2)]) is None:
            return None
    return ctx.on_memory(replace(op, inputs=(*operands, *third)), dims)


@rule("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool")
def maps(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Any number of feature maps, as images are independent."""
    dims = ctx.dims(op)
    others = [ctx.dims(op, n) for n in range(1, len(op.inputs)) if op.inputs[n]]
    if is_open(dims[1:]) or any(map(is_open, others)) or len(op.outputs) > 1:
        return None
    found = ctx.builder.typer.apply(op)[0]
    assert found is not None
    return [ctx.builder.sized(found, (dims[0], *found.extents[1:]))]
