"""Operators that only move elements: each is an index map, which fusion makes vanish."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import broadcast, element
from tilewright.graph.ops.derivative import as_input
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import CHANGES_AXES, MOVES_DATA

Buffers = Sequence[Buffer]


def regroup(
    source: Sequence[int], target: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Axes of both shapes in groups of equal size, in order, each as small as can be.

    `regroup((2, 3, 4), (6, 4))` is `[([0, 1], [0]), ([2], [1])]`.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left: list[int] = []
        right: list[int] = []
        a = b = 1
        if i < len(source):
            left, a, i = [i], source[i], i + 1
        if j < len(target):
            right, b, j = [j], target[j], j + 1
        while a != b:
            if a < b and i < len(source):
                left, a, i = [*left, i], a * source[i], i + 1
            elif j < len(target):
                right, b, j = [*right, j], b * target[j], j + 1
            else:
                left, a, i = [*left, i], a * source[i], i + 1
        groups.append((left, right))
    return groups


def reshaped(x: Buffer, point: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The element of `x` that lies at `point` when its elements are laid out in `shape`."""
    index: list[Any] = [const(0)] * len(x.shape)
    if 0 not in shape:
        for left, right in regroup(x.shape, shape):
            linear = _linear([(point[a], shape[a]) for a in right if shape[a] != 1])
            below = 1
            for n, axis in reversed(list(enumerate(left))):
                extent = x.shape[axis]
                if extent != 1:
                    digit = linear if below == 1 else linear // below
                    above = math.prod(x.shape[a] for a in left[:n])
                    index[axis] = digit if above == 1 else digit % extent
                below *= extent
    return x[tuple(index)]


def _linear(digits: Sequence[tuple[Expr, int]]) -> Expr:
    """The number with those digits, most significant first, each with its extent."""
    found: Expr | None = None
    weight = 1
    for digit, extent in reversed(digits):
        term = digit if weight == 1 else digit * weight
        found = term if found is None else term + found
        weight *= extent
    return const(0) if found is None else found


def _reshape_op(
    name: str, shape_of: Any, since: int = 1, until: int | None = None
) -> None:
    """Register an operator that keeps the elements in order; shape_of(call): the new shape."""

    def infer(call: OpCall) -> Sequence[Type]:
        shape = tuple(shape_of(call))
        if math.prod(shape) != call.size(0):
            raise call.error(f"shape {list(call.shape(0))} cannot become {list(shape)}")
        return [(call.dtype(0), shape)]

    def compute(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
        x, out = inputs[0], outputs[0]
        return [map_(call.name, out, lambda *i: reshaped(x, i, out.shape))]

    def reference(call: OpCall, x: Array, *rest: Array) -> list[Array]:
        known = dict(zip(call.operation.inputs, (x, *rest), strict=False))
        values = {v: a for v, a in known.items() if v is not None and a is not None}
        return [x.reshape(tuple(shape_of(_with_shape(call, x, values))))]

    register(
        OpDef(
            name,
            infer,
            since=since,
            until=until,
            compute=compute,
            reference=reference,
            traits=MOVES_DATA | CHANGES_AXES,
            gradient=as_input,
        )
    )


def _with_shape(call: OpCall, x: Array, values: dict[Any, Array]) -> OpCall:
    """The call with input 0 typed by the array at hand, and the other inputs known."""
    from dataclasses import replace

    first = call.value(0)
    typed = replace(
        first, dtype=dtypes.dtype_of(x.dtype), shape=tuple(int(d) for d in x.shape)
    )
    op = replace(call.operation, inputs=(typed, *call.operation.inputs[1:]))
    return OpCall(op, values)


def _new_shape(call: OpCall) -> list[int]:
    source = call.shape(0)
    asked = call.ints(1) or []
    keep = call.attr("allowzero", 0) != 1
    if keep and any(d == 0 and n >= len(source) for n, d in enumerate(asked)):
        raise call.error(
            f"shape {asked} copies an extent that {list(source)} does not have"
        )
    shape = [source[n] if d == 0 and keep else d for n, d in enumerate(asked)]
    if shape.count(-1) > 1 or any(d < -1 for d in shape):
        raise call.error(f"shape {asked} is not a shape")
    if -1 in shape:
        rest = math.prod(d for d in shape if d != -1)
        size = math.prod(source)
        if rest == 0 or size % rest:
            raise call.error(f"shape {list(source)} cannot become {asked}")
        shape[shape.index(-1)] = size // rest
    return shape


def _flat_shape(call: OpCall) -> list[int]:
    shape = call.shape(0)
    axis = call.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [math.prod(shape[:axis]), math.prod(shape[axis:])]


def axes_of(call: OpCall, rank: int) -> list[int] | None:
    """The axes, an attribute before version 13 and an input since; None if they are left out."""
    axes = call.ints(1) if call.version >= 13 else call.attr("axes")
    return None if axes is None else [call.axis(a, rank) for a in axes]


def _squeezed(call: OpCall) -> list[int]:
    shape = call.shape(0)
    axes = axes_of(call, len(shape))
    if axes is None:
        axes = [n for n, d in enumerate(shape) if d == 1]
    if any(shape[a] != 1 for a in axes):
        raise call.error(f"cannot squeeze axes {axes} of {list(shape)}")
    return [d for n, d in enumerate(shape) if n not in axes]


def _unsqueezed(call: OpCall) -> list[int]:
    shape = list(call.shape(0))
    asked = (call.ints(1) if call.version >= 13 else call.attr("axes")) or []
    axes = [call.axis(a, len(shape) + len(asked)) for a in asked]
    if len(set(axes)) != len(axes):
        raise call.error(f"axes {asked} name one axis twice")
    for a in sorted(axes):
        shape.insert(a, 1)
    return shape


_reshape_op("Reshape", _new_shape, since=5)
_reshape_op("Flatten", _flat_shape)
_reshape_op("Squeeze", _squeezed)
_reshape_op("Unsqueeze", _unsqueezed)


def _perm(call: OpCall) -> list[int]:
    rank = call.rank(0)
    perm = call.attr("perm") or list(range(rank))[::-1]
    if sorted(perm) != list(range(rank)):
        raise call.error(f"perm {perm} is not an order of {rank} axes")
    return list(perm)


def _transpose(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, perm = inputs[0], _perm(call)
    place = [perm.index(a) for a in range(len(perm))]
    return [map_(call.name, outputs[0], lambda *i: x[tuple(i[p] for p in place)])]


def _transpose_gradient(
    f: Fragment, call: OpCall, x: Sequence[Value], y: Value, g: Value
) -> Sequence[Value]:
    perm = _perm(call)
    return [f.op("Transpose", g, perm=[perm.index(i) for i in range(len(perm))])]


register(
    OpDef(
        "Transpose",
        lambda call: [(call.dtype(0), tuple(call.shape(0)[p] for p in _perm(call)))],
        compute=_transpose,
        reference=lambda call, x: [np.transpose(x, call.attr("perm"))],
        traits=MOVES_DATA | CHANGES_AXES,
        gradient=_transpose_gradient,
    )
)


def _expanded(call: OpCall) -> Sequence[Type]:
    return [(call.dtype(0), broadcast(call, call.shape(0), call.ints(1) or []))]


register(
    OpDef(
        "Expand",
        _expanded,
        since=8,
        compute=lambda call, inputs, outputs: [
            map_(call.name, outputs[0], lambda *i: element(inputs[0], i))
        ],
        reference=lambda _, x, shape: [
            np.broadcast_to(
                x, np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))
            )
        ],
        traits=MOVES_DATA,
    )
)


def _tile(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, out = inputs[0], outputs[0]

    def at(*i: Expr) -> Expr:
        return x[
            tuple(
                v if n == m else v % n if n != 1 else const(0)
                for v, n, m in zip(i, x.shape, out.shape, strict=True)
            )
        ]

    return [map_(call.name, out, at)]


def _tiled(call: OpCall) -> Sequence[Type]:
    repeats = call.ints(1) or []
    if len(repeats) != call.rank(0):
        raise call.error(f"{len(repeats)} repeats for {call.rank(0)} axes")
    return [
        (
            call.dtype(0),
            tuple(d * r for d, r in zip(call.shape(0), repeats, strict=True)),
        )
    ]


register(
    OpDef(
        "Tile",
        _tiled,
        since=6,
        compute=_tile,
        reference=lambda _, x, repeats: [np.tile(x, tuple(repeats))],
        traits=MOVES_DATA,
    )
)


def _concat_type(call: OpCall) -> Sequence[Type]:
    shapes = [call.shape(i) for i in range(call.arity)]
    axis = call.axis(call.attr("axis", 1), len(shapes[0]))
    rests = {s[:axis] + s[axis + 1 :] for s in shapes}
    if len(rests) != 1:
        shown = ", ".join(str(list(s)) for s in shapes)
        raise call.error(f"shapes {shown} differ in another axis than {axis}")
    total = sum(s[axis] for s in shapes)
    return [(call.dtype(0), (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))]


def _concat(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    """Each operand fills its own part of the result."""
    out = outputs[0]
    axis = call.axis(call.attr("axis", 1), len(out.shape))
    parts = []
    start = 0
    for n, x in enumerate([x for x in inputs if x.shape[axis]] or inputs[:1]):
        parts.append(_part(f"{call.name}_{n}", x, out, axis, start))
        start += x.shape[axis]
    return parts


def _part(name: str, x: Buffer, out: Buffer, axis: int, start: int) -> Computation:
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
    )
)


def _split_sizes(call: OpCall) -> tuple[int, list[int]]:
    shape = call.shape(0)
    axis = call.axis(call.attr("axis", 0), len(shape))
    sizes = call.ints(1) if call.version >= 13 else call.attr("split")
    if sizes is None:
        count = len(call.operation.outputs)
        asked = call.attr("num_outputs", count)
        if asked != count:
            raise call.error(f"num_outputs is {asked}, but there are {count} outputs")
        each = -(-shape[axis] // count)
        sizes = [max(0, min(each, shape[axis] - n * each)) for n in range(count)]
    if sum(sizes) != shape[axis] or min(sizes, default=0) < 0:
        raise call.error(f"sizes {sizes} do not add up to the extent {shape[axis]}")
    return axis, list(sizes)


def _split_types(call: OpCall) -> Sequence[Type]:
    axis, sizes = _split_sizes(call)
    shape = call.shape(0)
    return [(call.dtype(0), (*shape[:axis], n, *shape[axis + 1 :])) for n in sizes]


def _split(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
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
    axis, sizes = _split_sizes(_with_shape(call, x, values))
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
        starts, ends = call.ints(1) or [], call.ints(2) or []
        axes, steps = call.ints(3), call.ints(4)
    else:
        starts, ends = call.attr("starts"), call.attr("ends")
        axes, steps = call.attr("axes"), None
    axes = list(range(len(starts))) if axes is None else axes
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


def _slice(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, windows = inputs[0], _slices(call)

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
    windows = _slices(_with_shape(call, x, values))
    return [x[np.ix_(*(start + step * np.arange(n) for start, n, step in windows))]]


register(
    OpDef(
        "Slice",
        lambda call: [(call.dtype(0), tuple(w[1] for w in _slices(call)))],
        compute=_slice,
        reference=_slice_arrays,
        traits=MOVES_DATA,
    )
)


def _filled(call: OpCall) -> Array:
    value: Array = call.attr("value", np.zeros(1, np.float32))
    return value.reshape(-1)[:1]


def _constant_of_shape(
    call: OpCall, inputs: Buffers, outputs: Buffers
) -> list[Computation]:
    value = const(_filled(call)[0], outputs[0].dtype)
    return [map_(call.name, outputs[0], lambda *i: value)]


register(
    OpDef(
        "ConstantOfShape",
        lambda call: [
            (dtypes.dtype_of(_filled(call).dtype), tuple(call.ints(0) or []))
        ],
        since=9,
        compute=_constant_of_shape,
        reference=lambda call, shape: [
            np.broadcast_to(_filled(call)[0], tuple(int(d) for d in shape))
        ],
    )
)


def _shape_value(call: OpCall) -> list[Array] | None:
    if not call.value(0).static:
        return None
    return [_shape_arrays(call, np.empty(0), call.shape(0))]


def _shape_arrays(call: OpCall, x: Array, shape: Sequence[int] | None = None) -> Array:
    whole = x.shape if shape is None else shape
    return np.array(whole[call.attr("start", 0) : call.attr("end")], np.int64)


def _shape_type(call: OpCall) -> Sequence[Type]:
    rank = len(range(call.rank(0))[call.attr("start", 0) : call.attr("end")])
    return [(dtypes.int64, (rank,))]


register(
    OpDef(
        "Shape",
        _shape_type,
        static_value=_shape_value,
        reference=lambda call, x: [_shape_arrays(call, x)],
        traits=CHANGES_AXES,
    )
)
register(
    OpDef(
        "Size",
        lambda call: [(dtypes.int64, ())],
        static_value=lambda call: (
            [np.array(call.size(0), np.int64)] if call.value(0).static else None
        ),
        reference=lambda _, x: [np.array(x.size, np.int64)],
        traits=CHANGES_AXES,
    )
)
