"""Reads at computed positions: Gather and related operators. Indices are checked when used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import ExecutionError
from tilewright.compute.build import cast, map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, const
from tilewright.graph.ops.broadcasting import replaced
from tilewright.graph.ops.errors import place
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import MOVES_DATA

Buffers = Sequence[Buffer]


def wrapped(index: Expr, extent: int) -> Expr:
    """An index as int64, with negative ones counted from the end."""
    i = cast(index, INDEX)
    if index.dtype.is_signed:
        return Select(i < 0, i + extent, i)
    return i


def _gather_type(call: OpCall) -> Sequence[Type]:
    data = call.shape(0)
    indices = call.shape(1)
    axis = call.own_axis(len(data), 0)
    return call.result((*data[:axis], *indices, *data[axis + 1 :]))


def _gather(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    data, indices = inputs
    axis = call.own_axis(len(data.shape), 0)
    rank = len(indices.shape)
    known = call.constant(1)
    extent = data.shape[axis]

    def at(*i: Any) -> Expr:
        chosen: Expr
        if known is not None and known.size == 1:
            chosen = const(_checked(call, int(known.reshape(-1)[0]), extent))
        else:
            chosen = wrapped(indices[i[axis : axis + rank]], extent)
        return data[(*i[:axis], chosen, *i[axis + rank :])]

    return [map_(call.name, outputs[0], at)]


def _checked(call: OpCall, index: int, extent: int) -> int:
    if not -extent <= index < extent:
        raise call.error(f"index {index} is out of range for an extent of {extent}")
    return index % extent


def _gather_arrays(
    call: OpCall,
    data: Array,
    indices: Array,
) -> list[Array]:
    axis = call.attr("axis", 0)
    check_indices(call, indices, data.shape[axis])
    return [np.take(data, indices, axis)]


def check_indices(call: OpCall, indices: Array, extent: int) -> None:
    """Raise ExecutionError for an index outside -extent .. extent - 1."""
    if not indices.size or (-extent <= indices.min() and indices.max() < extent):
        return
    raise ExecutionError(
        f"index out of range for an extent of {extent}", where=place(call.operation)
    )


register(
    OpDef(
        "Gather",
        _gather_type,
        compute=_gather,
        reference=_gather_arrays,
        traits=MOVES_DATA,
    )
)


def _gather_elements(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    data, indices = inputs
    axis = call.own_axis(len(data.shape), 0)

    def at(*i: Any) -> Expr:
        chosen = wrapped(indices[i], data.shape[axis])
        return data[replaced(i, axis, chosen)]

    return [map_(call.name, outputs[0], at)]


def _gather_elements_type(call: OpCall) -> Sequence[Type]:
    data = call.shape(0)
    indices = call.shape(1)
    axis = call.own_axis(len(data), 0)
    fits = len(data) == len(indices) and all(
        n <= m for a, (n, m) in enumerate(zip(indices, data, strict=True)) if a != axis
    )
    if not fits:
        raise call.error(f"indices {list(indices)} reach beyond data {list(data)}")
    return call.result(indices)


register(
    OpDef(
        "GatherElements",
        _gather_elements_type,
        since=11,
        compute=_gather_elements,
        reference=lambda call, data, indices: [_take_along(call, data, indices)],
        traits=MOVES_DATA,
    )
)


def _take_along(call: OpCall, data: Array, indices: Array) -> Array:
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    axis = call.attr("axis", 0)
    check_indices(call, indices, data.shape[axis])
    grid[axis] = indices
    found: Array = data[tuple(grid)]
    return found
