"""Elements selected by an index tensor or a condition: GatherND, OneHot and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, const
from tilewright.graph.ops.broadcasting import inserted, wide, wide_dtype, without
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.gather import wrapped
from tilewright.graph.ops.reduce import point_of, reduced_shape
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import MOVES_DATA

Buffers = Sequence[Buffer]


def _gather_nd_type(call: OpCall) -> Sequence[Type]:
    data = call.shape(0)
    indices = call.shape(1)
    batch = call.attr("batch_dims", 0)
    if (
        not indices
        or batch + indices[-1] > len(data)
        or data[:batch] != indices[:batch]
    ):
        raise call.error(f"indices {list(indices)} do not fit data {list(data)}")
    return call.result((*indices[:-1], *data[batch + indices[-1] :]))


def _gather_nd(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    data, indices = inputs
    batch = call.attr("batch_dims", 0)
    depth = indices.shape[-1]
    rank = len(indices.shape)

    def at(*i: Any) -> Expr:
        lead = i[: rank - 1]
        chosen = []
        for n in range(depth):
            index = indices[(*lead, n)]
            chosen.append(wrapped(index, data.shape[batch + n]))
        return data[(*i[:batch], *chosen, *i[rank - 1 :])]

    return [map_(call.name, outputs[0], at)]


register(
    OpDef(
        "GatherND",
        _gather_nd_type,
        since=11,
        compute=_gather_nd,
        traits=MOVES_DATA,
    )
)


def _one_hot_axis(call: OpCall) -> int:
    return call.own_axis(call.rank(0) + 1, -1)


def _one_hot_type(call: OpCall) -> Sequence[Type]:
    shape = call.shape(0)
    axis = _one_hot_axis(call)
    depth = call.int_scalar(1)
    return [(call.dtype(2), inserted(shape, axis, depth))]


def _one_hot(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    """An index out of range yields a row of off values."""
    indices = inputs[0]
    values = inputs[2]
    out = outputs[0]
    axis = _one_hot_axis(call)
    depth = out.shape[axis]

    def at(*i: Any) -> Expr:
        chosen = cast(indices[without(i, axis)], INDEX)
        chosen = Select(chosen < 0, chosen + depth, chosen)
        return Select(chosen.eq(i[axis]), values[1], values[0])

    return [map_(call.name, out, at)]


register(
    OpDef(
        "OneHot",
        _one_hot_type,
        since=9,
        compute=_one_hot,
        by_value=(1,),
    )
)


def _hardmax(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    """One at the first maximum: along an axis; before version 13 over all axes from it on."""
    x = inputs[0]
    out = outputs[0]
    rank = len(x.shape)
    since_13 = call.version >= 13
    axis = call.own_axis(rank, -1 if since_13 else 1)
    axes = [axis] if since_13 else list(range(axis, rank))
    shape = reduced_shape(x.shape, axes, keep=True)
    top = Buffer(f"{call.name}_top", shape, wide_dtype(x.dtype))
    place = Buffer(f"{call.name}_place", shape, INDEX)

    def number(i: Sequence[Any]) -> Expr:
        """The index of an element among those compared with one another."""
        found: Expr = const(0)
        for a in axes:
            found = found * x.shape[a] + i[a]
        return found

    def candidate(*i: Any) -> tuple[Expr, Expr]:
        point = point_of(axes, rank, True, i)
        return wide(x[point]), number(point)

    def mark(*i: Any) -> Expr:
        row = tuple(const(0) if a in axes else v for a, v in enumerate(i))
        chosen = place[row].eq(number(i))
        return Select(
            chosen,
            const(1, out.dtype),
            const(0, out.dtype),
        )

    first = arg_reducer("argmax", top.dtype, INDEX)
    over = [x.shape[a] for a in axes]
    return [
        reduce_(top.name, (top, place), over, first, candidate),
        map_(call.name, out, mark),
    ]


register(
    OpDef(
        "Hardmax",
        same_type,
        compute=_hardmax,
        flops=lambda call: call.size(0),
    )
)


def _reverse_sequence(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x, lengths = inputs
    batch = call.attr("batch_axis", 1)
    time = call.attr("time_axis", 0)
    if {batch, time} != {0, 1}:
        raise call.error(f"batch_axis={batch} and time_axis={time} are not 0 and 1")

    def at(*i: Any) -> Expr:
        n = cast(lengths[i[batch]], INDEX)
        step = Select(i[time] < n, n - 1 - i[time], i[time])
        return x[tuple(step if a == time else v for a, v in enumerate(i))]

    return [map_(call.name, outputs[0], at)]


register(
    OpDef(
        "ReverseSequence",
        same_type,
        since=10,
        compute=_reverse_sequence,
        traits=MOVES_DATA,
    )
)
