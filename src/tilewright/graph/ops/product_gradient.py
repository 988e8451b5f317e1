"""Derivatives of products along an axis that have derivatives themselves where factors are zero.

The quotient of a product by a factor has none there. So a product is made of those of both halves,
again and again, and a running one of those of 1, 2, 4, ... neighbors: only products of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import wide_dtype
from tilewright.graph.ops.derivative import Backward, extents, reshaped
from tilewright.graph.ops.fragment import Fragment


def _padded(
    f: Fragment,
    x: Value,
    count: int,
    axis: int,
    front: bool = False,
) -> Value:
    """With so many ones behind the last element of an axis, or before the first one."""
    if not count:
        return x
    assert x.dtype is not None
    pads = f.ints(count if front else 0, 0 if front else count)
    return f.op("Pad", x, pads, f.number(1, x.dtype), f.ints(axis))


def _part(
    f: Fragment,
    x: Value,
    first: int,
    end: int,
    axis: int,
) -> Value:
    return f.op("Slice", x, f.ints(first), f.ints(end), f.ints(axis))


def product_gradient(
    f: Fragment,
    x: Value,
    g: Value,
    axes: Sequence[int],
) -> Value:
    """By the factors along some axes, from that of their products, which may lack the axes."""
    if not x.dtype or not axes:
        return g
    shape = extents(x)
    if 0 in shape:
        return f.op("Expand", f.number(0, x.dtype), f.ints(*shape))
    kept = [n for n in range(len(shape)) if n not in axes]
    order = [*kept, *axes]
    wide = wide_dtype(x.dtype)
    count = math.prod(shape[n] for n in axes)
    rows = math.prod(shape[n] for n in kept)
    turned = f.transpose(x, *order)
    matrix = f.reshape(turned, rows, count)
    level = f.cast(matrix, wide)
    column = f.reshape(g, rows, 1)
    flow = f.cast(column, wide)
    halves: list[tuple[list[Value], int]] = []
    while count > 1:
        half = (count + 1) // 2
        odd = 2 * half - count
        padded = _padded(f, level, odd, 1)
        both = f.split(padded, [half, half], 1)
        halves.append((both, count))
        level = f.op("Mul", *both)
        count = half
    for both, count in reversed(halves):
        flows = [f.op("Mul", flow, other) for other in reversed(both)]
        together = f.op("Concat", *flows, axis=1)
        flow = _part(f, together, 0, count, 1)
    narrow = f.cast(flow, x.dtype)
    found = reshaped(f, narrow, [shape[n] for n in order])
    back = np.argsort(order).tolist()
    return f.transpose(found, *back)


def running_product_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value | None]:
    """Of CumProd: step by step, each element times the one 1, 2, 4, ... places before it."""
    data = x[0]
    shape = extents(data)
    assert data.dtype is not None
    axis = call.axis(call.int_scalar(1), len(shape))
    count = shape[axis]
    wide = wide_dtype(data.dtype)
    reverse = bool(call.attr("reverse", 0))

    def turned(v: Value) -> Value:
        if not reverse:
            return v
        last = f.ints(-1)
        end = f.ints(-count - 1)
        along = f.ints(axis)
        return f.op("Slice", v, last, end, along, last)

    def behind(
        v: Value,
        by: int,
    ) -> Value:
        """Each element is the one so many places before it, or 1."""
        first = _part(f, v, 0, count - by, axis)
        return _padded(f, first, by, axis, front=True)

    def before(
        v: Value,
        by: int,
    ) -> Value:
        """Each element is the one so many places behind it, or 0."""
        rest = _part(f, v, by, count, axis)
        return f.op("Pad", rest, f.ints(0, by), None, f.ints(axis))

    exclusive = bool(call.attr("exclusive", 0))
    level = turned(f.cast(data, wide))
    flow = turned(f.cast(g, wide))
    if exclusive and count:
        level = behind(level, 1)
    steps: list[tuple[Value, int]] = []
    by = 1
    while by < count:
        steps.append((level, by))
        level = f.op("Mul", level, behind(level, by))
        by *= 2
    for level, by in reversed(steps):
        own = f.op("Mul", flow, behind(level, by))
        other = before(f.op("Mul", flow, level), by)
        flow = f.op("Add", own, other)
    if exclusive and count:
        flow = before(flow, 1)
    return [f.cast(turned(flow), data.dtype), None]
