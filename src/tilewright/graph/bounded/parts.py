"""Rules of operators that cut and join tensors: Slice, Split, Concat, Pad."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.bounded.context import BoundedContext, Results, rule
from tilewright.graph.bounded.extents import (
    BoundedExtent,
    Dim,
    Dims,
    least,
    most,
    storage,
)
from tilewright.graph.bounded.shapes import product, reshaped
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.broadcasting import replaced
from tilewright.graph.ops.open_extents import DOMAIN


def _end(
    ctx: BoundedContext,
    place: Dim,
    extent: Dim,
) -> Dim | None:
    """A start or an end, clamped to 0 .. extent; None if its sign is unknown."""
    b = ctx.builder
    if least(place) >= 0:
        return b.number("Min", place, extent)
    if most(place) < 0:
        return b.number("Max", b.number("Add", place, extent), 0)
    return None


def cut(
    ctx: BoundedContext,
    x: Value,
    axis: int,
    start: Dim,
    extent: Dim,
    step: int,
) -> Value:
    """`extent` elements of an axis from `start` on; all must exist."""
    b = ctx.builder
    dims = b.dims(x)
    after = replaced(dims, axis, extent)
    if step == 1 and start == 0:
        ends = [b.constant([n]) for n in (0, most(extent), axis)]
        return b.sized(b.op("Slice", x, *ends), after)
    places = b.op("Mul", b.iota(most(extent)), b.constant(step))
    places = b.op("Add", places, b.scalar(start))
    inside = b.inside((extent,))
    if inside is not None:
        places = b.op("Where", inside, places, b.constant(0))
    return b.sized(b.op("Gather", x, places, axis=axis), after)


@rule("Slice")
def slices(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Forward slices with starts and ends of known sign."""
    dims = ctx.dims(op)
    if len(op.inputs) < 3:
        return None
    starts = ctx.ints(op, 1)
    ends = ctx.ints(op, 2)
    if starts is None or ends is None:
        return None
    axes = ctx.numbers(op, 3) if _given(op, 3) else list(range(len(starts)))
    steps = ctx.numbers(op, 4) if _given(op, 4) else [1] * len(starts)
    if axes is None or steps is None:
        return None
    axes = [a % len(dims) for a in axes]
    static = all(isinstance(dims[a], int) for a in axes)
    if static and all(isinstance(d, int) for d in (*starts, *ends)):
        found = ctx.builder.typer.apply(op)[0]
        assert found is not None
        return _with(ctx, found, dims, axes, found.extents)
    return _cuts(ctx, op, list(zip(axes, starts, ends, steps, strict=True)))


def _given(
    op: Operation,
    n: int,
) -> bool:
    return n < len(op.inputs) and op.inputs[n] is not None


def _with(
    ctx: BoundedContext,
    v: Value,
    dims: Dims,
    axes: Sequence[int],
    shape: Sequence[int],
) -> Results:
    """A result with other extents along some axes."""
    after = [shape[a] if a in axes else d for a, d in enumerate(dims)]
    return [ctx.builder.sized(v, after)]


def _cuts(
    ctx: BoundedContext,
    op: Operation,
    cuts: Sequence[tuple[int, Dim, Dim, int]],
) -> Results | None:
    b = ctx.builder
    x = ctx.call(op).value(0)
    for axis, start, end, step in cuts:
        extent = b.dims(x)[axis]
        first = _end(ctx, start, extent)
        last = _end(ctx, end, extent)
        if first is None or last is None or step < 1:
            return None
        reach = b.number("Max", b.number("Sub", last, first), 0)
        count = b.number("Div", b.number("Add", reach, step - 1), step)
        if count is extent and first == 0:
            continue
        if not storage(b.dims(x))[axis]:
            return None
        x = cut(ctx, x, axis, first, count, step)
    return [x]


@rule("Split")
def split(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Split along an axis of known extent."""
    dims = ctx.dims(op)
    axis = ctx.axis(op)
    if isinstance(dims[axis], BoundedExtent):
        return None
    found = ctx.builder.typer.apply(op)
    results: Results = []
    for v in found:
        results += [None] if v is None else _with(ctx, v, dims, [axis], v.extents)
    return results


@rule("Concat")
def concat(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Join the parts, each up to its count."""
    b = ctx.builder
    parts = [v for v in op.inputs if v is not None]
    axis = ctx.axis(op)
    shapes = [b.dims(v) for v in parts]
    for a, d in enumerate(shapes[0]):
        if a != axis and any(s[a] is not d and s[a] != d for s in shapes):
            return None
    total: Dim = 0
    for s in shapes:
        total = b.number("Add", total, s[axis])
    dims = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
    whole = ctx.on_memory(op, dims)
    if not any(isinstance(s[axis], BoundedExtent) for s in shapes[:-1]):
        return whole
    assert whole[0] is not None
    if not most(total):
        return whole
    places = _places(ctx, [s[axis] for s in shapes])
    return [b.sized(b.op("Gather", whole[0], places, axis=axis), dims)]


def _places(
    ctx: BoundedContext,
    extents: Sequence[Dim],
) -> Value:
    """The index of each result element in the concatenated memory of the parts; 0 past the last."""
    b = ctx.builder
    memory = sum(storage(extents))
    at = b.iota(memory)
    found = b.constant(0)
    begin: Dim = 0
    room = 0
    for d in extents:
        end = b.number("Add", begin, d)
        after = b.op("GreaterOrEqual", at, b.scalar(begin))
        here = b.op("And", after, b.op("Less", at, b.scalar(end)))
        moved = b.op("Add", at, b.scalar(b.number("Sub", room, begin)))
        found = b.op("Where", here, moved, found)
        begin = end
        room += max(most(d), 0)
    return found


@rule("Pad")
def pad(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Pad along axes of known extent."""
    dims = ctx.dims(op)
    pads = ctx.numbers(op, 1) if len(op.inputs) > 1 else op.attr("pads")
    if pads is None or _given(op, 3):
        return None
    ends = list(zip(pads[: len(dims)], pads[len(dims) :], strict=True))
    touched = [a for a, pair in enumerate(ends) if any(pair)]
    if any(isinstance(dims[a], BoundedExtent) for a in touched):
        return None
    found = ctx.builder.typer.apply(op)[0]
    assert found is not None
    return _with(ctx, found, dims, touched, found.extents)


@rule("Compress")
def compress(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """The elements selected by a condition."""
    b = ctx.builder
    x = ctx.call(op).value(0)
    condition = ctx.call(op).value(1)
    axis = op.attr("axis")
    if axis is None:
        flat = reshaped_flat(ctx, x)
        if flat is None:
            return None
        x, axis = flat, 0
    axis = axis % len(b.dims(x))
    if not storage(b.dims(x))[axis]:
        return None
    places = nonzero(ctx, condition)
    if places is None:
        return None
    row = b.op("Reshape", places, b.constant([-1]))
    row = b.sized(row, b.dims(places)[1:])
    index = b.index(row, (b.dims(x)[axis],))
    dims = b.dims(x)
    after = replaced(dims, axis, b.dims(places)[1])
    return [b.sized(b.op("Gather", x, index, axis=axis), after)]


def reshaped_flat(
    ctx: BoundedContext,
    x: Value,
) -> Value | None:
    """The elements as a vector."""
    return reshaped(ctx, x, [product(ctx, ctx.builder.dims(x))])


def nonzero(
    ctx: BoundedContext,
    x: Value,
) -> Value | None:
    """The positions of nonzero elements, as (axis, number)."""
    b = ctx.builder
    if not b.dims(x):
        return None
    return b.once(("nonzero", x), lambda: _searched(ctx, x))


def _searched(
    ctx: BoundedContext,
    x: Value,
) -> Value:
    b = ctx.builder
    places, count = b.ops("NonZero", b.filled(x, 0), count=2, domain=DOMAIN)
    found = b.extent(count, places.extents[1])
    return b.sized(places, (places.extents[0], found))
