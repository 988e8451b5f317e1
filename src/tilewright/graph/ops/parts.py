"""Operators on parts of tensors: Concat, Split, Slice. Each is an index map, as in `shape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.numbers import ceil_div
from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr
from tilewright.graph.ops.broadcasting import replaced
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.shape import with_shape
from tilewright.graph.ops.traits import JOINS, MOVES_DATA

Buffers = Sequence[Buffer]


def _concat_type(call: OpCall) -> Sequence[Type]:
    shapes = [call.shape(i) for i in range(call.arity)]
    axis = call.own_axis(len(shapes[0]), 1)
    others = {replaced(s, axis, None) for s in shapes}
    if len(others) != 1:
        shown = ", ".join(str(list(s)) for s in shapes)
        raise call.error(f"shapes {shown} differ in an axis other than {axis}")
    total = sum(s[axis] for s in shapes)
    return call.result(replaced(shapes[0], axis, total))


def _concat(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    """Each operand fills one part of the result."""
    out = outputs[0]
    axis = call.own_axis(len(out.shape), 1)
    parts = []
    start = 0
    not_empty = [x for x in inputs if x.shape[axis]]
    for n, x in enumerate(not_empty or inputs[:1]):
        parts.append(_part(f"{call.name}_{n}", x, out, axis, start))
        start += x.shape[axis]
    return parts


def _part(
    name: str,
    x: Buffer,
    out: Buffer,
    axis: int,
    start: int,
) -> Computation:
    def place(*i: Any) -> tuple[Any, ...]:
        return tuple(v + start if n == axis and start else v for n, v in enumerate(i))

    return map_(name, out, lambda *i: x[i], extents=x.shape, index=place)


register(
    OpDef(
        "Concat",
        _concat_type,
        since=4,
        compute=_concat,
        reference=lambda call, *parts: [np.concatenate(parts, call.attr("axis", 1))],
        traits=JOINS,
    )
)


def _split_sizes(call: OpCall) -> tuple[int, list[int]]:
    shape = call.shape(0)
    axis = call.own_axis(len(shape), 0)
    if call.version >= 13:
        sizes = call.ints(1)
    else:
        sizes = call.attr("split")
    if sizes is None:
        count = len(call.operation.outputs)
        asked = call.attr("num_outputs", count)
        if asked != count:
            raise call.error(f"num_outputs is {asked}, but there are {count} outputs")
        each = ceil_div(shape[axis], count)
        sizes = [max(0, min(each, shape[axis] - n * each)) for n in range(count)]
    if sum(sizes) != shape[axis] or min(sizes, default=0) < 0:
        raise call.error(f"sizes {sizes} do not add up to the extent {shape[axis]}")
    return axis, list(sizes)


def _split_types(call: OpCall) -> Sequence[Type]:
    axis, sizes = _split_sizes(call)
    shape = call.shape(0)
    return [(call.dtype(0), replaced(shape, axis, n)) for n in sizes]


def _split(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    axis, sizes = _split_sizes(call)
    starts = np.cumsum([0, *sizes]).tolist()
    found = []
    for n, out in enumerate(outputs):
        if call.wants(n):
            window = _shifted(inputs[0], axis, starts[n])
            found.append(map_(f"{call.name}_{n}", out, window))
    return found


def _shifted(x: Buffer, axis: int, start: int) -> Any:
    def at(*i: Any) -> Expr:
        return x[
            tuple(v + start if n == axis and start else v for n, v in enumerate(i))
        ]

    return at


def _split_arrays(call: OpCall, x: Array, *_: Array) -> list[Array]:
    values = {
        v: a
        for v, a in zip(call.operation.inputs[1:], _, strict=False)
        if v is not None
    }
    axis, sizes = _split_sizes(with_shape(call, x, values))
    return np.split(x, np.cumsum(sizes)[:-1].tolist(), axis)


register(
    OpDef(
        "Split",
        _split_types,
        since=2,
        compute=_split,
        reference=_split_arrays,
        traits=MOVES_DATA,
    )
)


def _slices(call: OpCall) -> list[tuple[int, int, int]]:
    """Start, length and step for every axis of input 0."""
    shape = call.shape(0)
    if call.version >= 10:
        starts = call.ints(1) or []
        ends = call.ints(2) or []
        axes = call.ints(3)
        steps = call.ints(4)
    else:
        starts = call.attr("starts")
        ends = call.attr("ends")
        axes = call.attr("axes")
        steps = None
    if axes is None:
        axes = list(range(len(starts)))
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise call.error("starts, ends, axes and steps differ in length")
    found = [(0, n, 1) for n in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise call.error("a step is 0")
        axis = call.axis(axis, len(shape))
        window = range(shape[axis])[slice(start, end, step)]
        found[axis] = (window.start if len(window) else 0, len(window), step)
    return found


def _slice(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    windows = _slices(call)

    def at(*i: Any) -> Expr:
        return x[tuple(_along(v, w[0], w[2]) for v, w in zip(i, windows, strict=True))]

    return [map_(call.name, outputs[0], at)]


def _along(v: Expr, start: int, step: int) -> Expr:
    scaled = v if step == 1 else v * step
    return scaled + start if start else scaled


def _slice_arrays(call: OpCall, x: Array, *rest: Array | None) -> list[Array]:
    values = {
        v: a
        for v, a in zip(call.operation.inputs[1:], rest, strict=False)
        if v is not None and a is not None
    }
    windows = _slices(with_shape(call, x, values))
    return [x[np.ix_(*(start + step * np.arange(n) for start, n, step in windows))]]


register(
    OpDef(
        "Slice",
        lambda call: call.result(w[1] for w in _slices(call)),
        compute=_slice,
        reference=_slice_arrays,
        traits=MOVES_DATA,
    )
)
