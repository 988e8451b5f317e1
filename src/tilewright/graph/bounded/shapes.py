"""Rules of operators that return a shape or take one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.bounded.context import BoundedContext, Results, rule
from tilewright.graph.bounded.extents import (
    BoundedExtent,
    Dim,
    Dims,
    is_open,
    least,
    storage,
)
from tilewright.graph.nodes import Operation, Value


def broadcast(shapes: Sequence[Dims]) -> Dims | None:
    """The broadcast extents of operands.

    None if a run-time extent is broadcast with another one or with a number: they may differ or be
    1.
    """
    rank = max(map(len, shapes))
    found: list[Dim] = []
    for axis in range(-rank, 0):
        here = [s[axis] for s in shapes if len(s) >= -axis]
        wide = list(dict.fromkeys(d for d in here if d != 1))
        if len(wide) > 1:
            return None
        found.append(wide[0] if wide else 1)
    return tuple(found)


@rule("Shape")
def shape(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """The shape consists of the counts."""
    dims = ctx.dims(op)
    start = op.attr("start", 0)
    end = op.attr("end")
    wanted = dims[start:end]
    out = ctx.builder.vector(wanted)
    ctx.contents.put(out, wanted, (len(wanted),))
    return [out]


@rule("Size")
def size(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """The size is the product of the counts."""
    total = product(ctx, ctx.dims(op))
    out = ctx.builder.scalar(total)
    ctx.contents.put(out, [total], ())
    return [out]


def product(
    ctx: BoundedContext,
    dims: Sequence[Dim],
) -> Dim:
    """The number of elements."""
    total: Dim = 1
    for d in dims:
        total = ctx.builder.number("Mul", total, d)
    return total


def _solved(
    ctx: BoundedContext,
    dims: Dims,
    target: Sequence[Dim],
) -> list[Dim] | None:
    """The target with its -1 resolved; None if the sizes are not known to agree."""
    rest = [d for d in target if d != -1]
    mine = math.prod(d for d in dims if isinstance(d, int))
    theirs = math.prod(d for d in rest if isinstance(d, int))
    free = [d for d in dims if isinstance(d, BoundedExtent)]
    for d in rest:
        if isinstance(d, BoundedExtent):
            if d not in free:
                return None
            free.remove(d)
    if len(rest) == len(target):
        return list(target) if mine == theirs and not free else None
    if not theirs or mine % theirs:
        return None
    missing = product(ctx, [mine // theirs, *free])
    return [missing if d == -1 else d for d in target]


def _segments(dims: Sequence[Dim]) -> list[object]:
    """The run-time extents, and between them the products of the others."""
    found: list[object] = [1]
    for d in dims:
        if isinstance(d, BoundedExtent):
            found += [d, 1]
        else:
            found[-1] = found[-1] * d  # type: ignore[operator]
    return found


def reshaped(
    ctx: BoundedContext,
    x: Value,
    target: Sequence[Dim],
) -> Value | None:
    """The elements in order in another shape.

    The memory is shared if each open extent stays an axis with equally many elements before and
    after it.
    """
    b = ctx.builder
    dims = b.dims(x)
    if _segments(dims) == _segments(target):
        shape = b.constant(storage(target))
        return b.sized(b.op("Reshape", x, shape, allowzero=1), target)
    if not math.prod(storage(dims)):
        return None
    flat = b.op("Reshape", x, b.constant([-1]))
    index = _linear(ctx, dims, target)
    inside = b.inside(tuple(target))
    if inside is not None:
        index = b.op("Where", inside, index, b.constant(0))
    return b.sized(b.op("Gather", flat, index, axis=0), target)


def _linear(
    ctx: BoundedContext,
    dims: Dims,
    target: Sequence[Dim],
) -> Value:
    """For each position in the target's memory, the position of its element in that of `dims`."""
    b, memory = ctx.builder, storage(target)
    index = b.constant(0)
    for axis, extent in enumerate(memory):
        step = b.scalar(product(ctx, target[axis + 1 :]))
        place = b.iota(extent, axis, len(memory))
        index = b.op("Add", index, b.op("Mul", place, step))
    index = b.op("Expand", index, b.constant(memory))
    found = b.constant(0)
    for axis, d in enumerate(dims):
        below = b.number("Max", product(ctx, dims[axis + 1 :]), 1)
        digit = b.op("Div", index, b.scalar(below))
        if axis:
            digit = b.op("Mod", digit, b.scalar(b.number("Max", d, 1)))
        step = b.constant(math.prod(storage(dims[axis + 1 :])))
        found = b.op("Add", found, b.op("Mul", digit, step))
    return found


@rule("Reshape")
def reshape(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Reshape to a known shape, or to one that consists of counts."""
    x = ctx.call(op).value(0)
    dims = ctx.dims(op)
    target = ctx.ints(op, 1) if len(op.inputs) > 1 else op.attr("shape")
    if target is None:
        return None
    if not op.attr("allowzero", 0):
        pairs = enumerate(target)
        if any(d == 0 and n >= len(dims) for n, d in pairs):
            return None
        target = [dims[n] if d == 0 else d for n, d in enumerate(target)]
    if any(isinstance(d, BoundedExtent) and d.least < 0 for d in target):
        return None
    target = _solved(ctx, dims, target)
    found = None if target is None else reshaped(ctx, x, target)
    return None if found is None else [found]


@rule("Flatten")
def flatten(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Flatten many axes to two."""
    dims = ctx.dims(op)
    axis = int(op.attr("axis", 1))
    axis = axis + len(dims) if axis < 0 else axis
    target = [product(ctx, dims[:axis]), product(ctx, dims[axis:])]
    found = reshaped(ctx, ctx.call(op).value(0), target)
    return None if found is None else [found]


@rule("Squeeze")
def squeeze(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Remove axes of extent 1, which must be named if other extents are known only at run time."""
    dims = ctx.dims(op)
    axes = ctx.numbers(op, 1) if len(op.inputs) > 1 else op.attr("axes")
    if axes is None:
        return None
    gone = {a % len(dims) for a in axes}
    if any(dims[a] != 1 for a in gone):
        return None
    kept = [d for a, d in enumerate(dims) if a not in gone]
    found = reshaped(ctx, ctx.call(op).value(0), kept)
    return None if found is None else [found]


@rule("Unsqueeze")
def unsqueeze(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Insert axes of extent 1."""
    dims = list(ctx.dims(op))
    axes = ctx.numbers(op, 1) if len(op.inputs) > 1 else op.attr("axes")
    if axes is None:
        return None
    for a in sorted(a % (len(dims) + len(axes)) for a in axes):
        dims.insert(a, 1)
    return ctx.on_memory(op, dims)


@rule("CastLike")
def cast_like(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Only the element type is the second operand's: no extent of it is broadcast."""
    return ctx.on_memory(op, ctx.dims(op))


@rule("Transpose")
def transpose(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """The extents are permuted with their axes."""
    dims = ctx.dims(op)
    order = op.attr("perm") or range(len(dims))[::-1]
    return ctx.on_memory(op, [dims[a] for a in order])


@rule("Expand")
def expand(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Expand to a shape that may consist of counts."""
    target = ctx.ints(op, 1)
    if target is None or any(least(d) < 0 for d in target):
        return None
    dims = broadcast([ctx.dims(op), tuple(target)])
    if dims is None:
        return None
    memory = ctx.builder.constant(storage(dims))
    return ctx.on_memory(replace(op, inputs=(op.inputs[0], memory)), dims)


@rule("ConstantOfShape")
def constant_of_shape(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Fill a shape that may consist of counts."""
    dims = ctx.ints(op, 0)
    if dims is None or not is_open(dims) or any(least(d) < 0 for d in dims):
        return None
    memory = ctx.builder.constant(storage(dims))
    return ctx.on_memory(replace(op, inputs=(memory,)), dims)


@rule("Range")
def integers(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Integers up to a count, with a constant step."""
    b, dtype = ctx.builder, op.outputs[0]
    given = [ctx.ints(op, n) for n in range(3)]
    if dtype is None or any(g is None or len(g) != 1 for g in given):
        return None
    start, limit, delta = (g[0] for g in given if g)
    if not isinstance(delta, int) or not delta or not is_open([start, limit]):
        return None
    ends = (limit, start) if delta > 0 else (start, limit)
    reach = b.number("Max", b.number("Sub", *ends), 0)
    step = abs(delta)
    length = b.number("Div", b.number("Add", reach, step - 1), step)
    steps = b.op("Mul", b.iota(storage([length])[0]), b.constant(delta))
    whole = b.op("Add", steps, b.scalar(start))
    return [b.sized(b.op("CastLike", whole, op.inputs[0]), [length])]
