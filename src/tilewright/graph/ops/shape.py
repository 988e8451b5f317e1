"""Operators that only move elements: each is an index map, which fusion can eliminate."""

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
    """Axes of both shapes in groups of equal size, in order, each as small as possible.

    `regroup((2, 3, 4), (6, 4))` is `[([0, 1], [0]), ([2], [1])]`.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left: list[int] = []
        right: list[int] = []
        a = b = 1
        if i < len(source):
            left = [i]
            a = source[i]
            i = i + 1
        if j < len(target):
            right = [j]
            b = target[j]
            j = j + 1
        while a != b:
            if a < b and i < len(source):
                left = [*left, i]
                a = a * source[i]
                i = i + 1
            elif j < len(target):
                right = [*right, j]
                b = b * target[j]
                j = j + 1
            else:
                left = [*left, i]
                a = a * source[i]
                i = i + 1
        groups.append((left, right))
    return groups


def reshaped(
    x: Buffer,
    point: Sequence[Expr],
    shape: Sequence[int],
) -> Expr:
    """The element of `x` at `point` when the elements are laid out in `shape`."""
    index: list[Any] = [const(0)] * len(x.shape)
    if 0 not in shape:
        for left, right in regroup(x.shape, shape):
            linear = _linear([(point[a], shape[a]) for a in right if shape[a] != 1])
            below = 1
            for n, axis in reversed(list(enumerate(left))):
                extent = x.shape[axis]
                if extent != 1:
                    term = linear if below == 1 else linear // below
                    above = math.prod(x.shape[a] for a in left[:n])
                    index[axis] = term if above == 1 else term % extent
                below *= extent
    return x[tuple(index)]


def _linear(terms: Sequence[tuple[Expr, int]]) -> Expr:
    """The linear index of mixed-radix terms, highest first, each with its extent."""
    found: Expr | None = None
    weight = 1
    for term, extent in reversed(terms):
        part = term if weight == 1 else term * weight
        found = part if found is None else part + found
        weight *= extent
    return const(0) if found is None else found


def _reshape_op(
    name: str,
    shape_of: Any,
    since: int = 1,
    until: int | None = None,
) -> None:
    """Register an operator that keeps the order of elements. shape_of(call): the new shape."""

    def infer(call: OpCall) -> Sequence[Type]:
        shape = tuple(shape_of(call))
        if math.prod(shape) != call.size(0):
            raise call.error(f"shape {list(call.shape(0))} cannot become {list(shape)}")
        return call.result(shape)

    def compute(
        call: OpCall,
        inputs: Buffers,
        outputs: Buffers,
    ) -> list[Computation]:
        x = inputs[0]
        out = outputs[0]
        return [map_(call.name, out, lambda *i: reshaped(x, i, out.shape))]

    def reference(call: OpCall, x: Array, *rest: Array) -> list[Array]:
        known = dict(zip(call.operation.inputs, (x, *rest), strict=False))
        values = {v: a for v, a in known.items() if v is not None and a is not None}
        return [x.reshape(tuple(shape_of(with_shape(call, x, values))))]

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


def with_shape(
    call: OpCall,
    x: Array,
    values: dict[Any, Array],
) -> OpCall:
    """The call with input 0 typed by its array and the other inputs known."""
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
    """The axes, an attribute before version 13 and an input since; None if they are omitted."""
    if call.version >= 13:
        axes = call.ints(1)
    else:
        axes = call.attr("axes")
    if axes is None:
        return None
    return [call.axis(a, rank) for a in axes]


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
        raise call.error(f"axes {asked} repeat an axis")
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
        raise call.error(f"perm {perm} is not a permutation of {rank} axes")
    return list(perm)


def _transpose(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    perm = _perm(call)
    place = [perm.index(a) for a in range(len(perm))]
    return [
        map_(
            call.name,
            outputs[0],
            lambda *i: x[tuple(i[p] for p in place)],
        )
    ]


def _transpose_gradient(
    f: Fragment,
    call: OpCall,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value]:
    perm = _perm(call)
    return [f.transpose(g, *[perm.index(i) for i in range(len(perm))])]


register(
    OpDef(
        "Transpose",
        lambda call: call.result(call.shape(0)[p] for p in _perm(call)),
        compute=_transpose,
        reference=lambda call, x: [np.transpose(x, call.attr("perm"))],
        traits=MOVES_DATA | CHANGES_AXES,
        gradient=_transpose_gradient,
    )
)


def _expanded(call: OpCall) -> Sequence[Type]:
    return call.result(broadcast(call, call.shape(0), call.ints(1) or []))


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


def _tile(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]

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
    return call.result(d * r for d, r in zip(call.shape(0), repeats, strict=True))


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


def _filled(call: OpCall) -> Array:
    value: Array = call.attr("value", np.zeros(1, np.float32))
    return value.reshape(-1)[:1]


def _constant_of_shape(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
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


def _shape_arrays(
    call: OpCall,
    x: Array,
    shape: Sequence[int] | None = None,
) -> Array:
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
