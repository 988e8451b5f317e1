"""Derivatives of products along an axis that have derivatives themselves where factors are zero.

The quotient of a product by a factor has none there. So a product is made of those of both halves,
again and again, and a running one of those of 1, 2, 4, ... neighbors: only products of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import wide_dtype
from tilewright.graph.ops.derivative import Backward, extents, reshaped
from tilewright.graph.ops.fragment import Fragment


def _padded(f: Fragment, x: Value, count: int, axis: int, front: bool = False) -> Value:
    """With so many ones behind the last element of an axis, or before the first one."""
    if not count:
        return x
    assert x.dtype is not None
    pads = f.ints(count if front else 0, 0 if front else count)
    return f.op("Pad", x, pads, f.number(1, x.dtype), f.ints(axis))


def _part(f: Fragment, x: Value, first: int, end: int, axis: int) -> Value:
    return f.op("Slice", x, f.ints(first), f.ints(end), f.ints(axis))


def product_gradient(f: Fragment, x: Value, g: Value, axes: Sequence[int]) -> Value:
    """By the factors along some axes, from that of their products, which may lack the axes."""
    if not x.dtype or not axes:
        return g
    shape = extents(x)
    if 0 in shape:
        return f.op("Expand", f.number(0, x.dtype), f.ints(*shape))
    kept = [n for n in range(len(shape)) if n not in axes]
    order = [*kept, *axes]
    wide = wide_dtype(x.dtype)
    count = int(np.prod([shape[n] for n in axes]))
    rows = int(np.prod([shape[n] for n in kept]))
    level = f.cast(f.reshape(f.transpose(x, *order), rows, count), wide)
    flow = f.cast(f.reshape(g, rows, 1), wide)
    halves: list[tuple[list[Value], int]] = []
    while count > 1:
        half = (count + 1) // 2
        both = f.split(_padded(f, level, 2 * half - count, 1), [half, half], 1)
        halves.append((both, count))
        level = f.op("Mul", *both)
        count = half
    for both, count in reversed(halves):
        flows = [f.op("Mul", flow, other) for other in reversed(both)]
        flow = _part(f, f.op("Concat", *flows, axis=1), 0, count, 1)
    found = reshaped(f, f.cast(flow, x.dtype), [shape[n] for n in order])
    return f.transpose(found, *np.argsort(order).tolist())


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
        ends = f.ints(-1), f.ints(-count - 1), f.ints(axis), f.ints(-1)
        return f.op("Slice", v, *ends)

    def behind(v: Value, by: int) -> Value:
        """Each element is the one so many places before it, or 1."""
        return _padded(f, _part(f, v, 0, count - by, axis), by, axis, front=True)

    def before(v: Value, by: int) -> Value:
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
