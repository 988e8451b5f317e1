"""Layouts of a plan's buffers, chosen across the graph: feature maps are stored channel-last.

A layout is an order of the logical axes in memory. Operators are written on logical axes and never
see it; only the index maps change (`compute.transforms.relayout`), so no transposition is inserted
anywhere: a graph input in channel-first order is simply read with other strides. Lowering asks, and
no pass does: it depends on traits of operators, which Computations do not have. Images of bytes,
whose channels do not fill a word, stay unchanged: neighbors along a row do.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.base.dtypes import int8, int32, uint8
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import CHANGES_AXES, SPATIAL


def choose(graph: Graph, fixed: Iterable[Value] = ()) -> dict[Value, tuple[int, ...]]:
    """The order of axes in memory of each value that is not row-major.

    fixed: values that must stay row-major besides inputs, outputs and constants of the graph
    (those that host fallbacks or hand-written Kernels touch).

    Memory is changed only of what is made and read by Computations, whose index maps follow:
    whatever else reads or makes a value, a caller or a kernel, takes it in its logical order. Its
    extents are known, and it has a channel and axes after it. All else here is a choice.
    """
    keep = {*graph.inputs, *graph.outputs, *graph.constants, *fixed}
    maps: set[Value] = set()
    pending: list[Operation] = []
    for op in graph.operations:
        if has_trait(op, SPATIAL):
            found = [op.inputs[0], op.outputs[0]]
            _extend(
                maps, (v for v in found if v is not None and _is_map(v)), pending, graph
            )
    while pending:
        op = pending.pop()
        if has_trait(op, CHANGES_AXES):
            continue
        ranks = {
            len(v.shape) for v in maps & {*op.reads, *op.writes} if v.shape is not None
        }
        values = (
            v for v in (*op.reads, *op.writes) if _is_map(v) and len(v.extents) in ranks
        )
        _extend(maps, values, pending, graph)
    return {
        v: _channel_last(len(v.extents))
        for v in maps
        if v not in keep and not _is_image(v)
    }


def _is_image(v: Value) -> bool:
    """Whether its channels are fewer bytes than a dot product adds up in a lane, an int32."""
    if v.dtype not in (uint8, int8):
        return False
    return v.extents[1] < int32.itemsize


def _extend(
    maps: set[Value], values: Iterable[Value], pending: list[Operation], graph: Graph
) -> None:
    for v in values:
        if v in maps:
            continue
        maps.add(v)
        producer = graph.producer(v)
        pending.extend(
            graph.users(v) if producer is None else (*graph.users(v), producer)
        )


def _is_map(v: Value) -> bool:
    return v.static and len(v.extents) >= 3


def _channel_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)
