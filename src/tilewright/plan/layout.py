"""Layouts of a plan's buffers, chosen across the graph: feature maps are stored channel-last.

A layout is an order of the logical axes in memory. Operators are written on logical axes and do not
see layouts; only the index maps change (`compute.transforms.relayout`), so no transpositions are
inserted: a channel-first graph input is simply read with other strides. Layouts are chosen by
lowering rather than by a pass, as they depend on operators' traits, which Computations do not have.
Images of bytes whose channels do not fill a word are unchanged, as neighbors along a row do fill
one. So are stacks of matrices: a product would read its columns apart by the number of matrices,
and a convolution over them has neighbors along a row to vectorize. So are maps whose channels fill
at most half a vector: neighbors along a row fill it, and what a window reads more than once is
turned once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.base.dtypes import float32, int8, int32, uint8
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import CHANGES_AXES, POINTWISE, SPATIAL, STACKS


def choose(
    graph: Graph, fixed: Iterable[Value] = (), few: int = 0
) -> dict[Value, tuple[int, ...]]:
    """The order of axes in memory for each value that is not row-major.

    fixed: values that must stay row-major, in addition to inputs, outputs and constants of the
    graph (those used by host fallbacks or hand-written Kernels). few: float32 channels, at most,
    of a map that stays row-major as well.

    Requires: the value is written and read only by Computations, whose index maps are adapted;
    everything else, callers and kernels, uses the logical order. Its extents are known, and it has
    a channel axis followed by others. The rest is a heuristic.
    """
    keep = {*graph.inputs, *graph.outputs, *graph.constants, *fixed}
    stacks = {v for op in graph.operations for v in _stacks(op)}
    maps: set[Value] = set()
    pending: list[Operation] = []
    for op in graph.operations:
        if has_trait(op, SPATIAL):
            found = [v for v in (op.inputs[0], op.outputs[0]) if v is not None]
            if stacks.isdisjoint(found):
                _extend(maps, filter(_is_map, found), pending, graph)
    while pending:
        op = pending.pop()
        if has_trait(op, CHANGES_AXES):
            continue
        ranks = {
            len(v.shape) for v in maps & {*op.reads, *op.writes} if v.shape is not None
        }
        values = (
            v
            for v in (*op.reads, *op.writes)
            if v not in stacks and _is_map(v) and len(v.extents) in ranks
        )
        _extend(maps, values, pending, graph)
    keep |= {v for v in maps if _is_narrow(graph, v, few)}
    return {
        v: _channel_last(len(v.extents))
        for v in maps
        if v not in keep and not _is_image(v)
    }


def _is_narrow(graph: Graph, v: Value, few: int) -> bool:
    """Whether few channels make it row-major.

    Not if a convolution without windows makes it, also in pointwise operators: that reads each
    element of its operand once, which turning it would not pay for.
    """
    if v.dtype is not float32 or v.extents[1] > few:
        return False
    seen: set[Value] = set()
    pending = [v]
    while pending:
        made = pending.pop()
        op = graph.producer(made)
        if made in seen or op is None:
            continue
        seen.add(made)
        if has_trait(op, POINTWISE):
            pending.extend(op.reads)
        elif op.qualified == "Conv" and not _has_windows(op):
            return False
    return True


def _has_windows(convolution: Operation) -> bool:
    weights = convolution.inputs[1]
    shape = None if weights is None else weights.shape
    return shape is None or set(shape[2:]) != {1}


def _stacks(op: Operation) -> Iterator[Value]:
    """The operands and results of a product whose second axis numbers its matrices.

    Both factors have such an axis: with a matrix that all share, the axis is one of rows.
    """
    if not has_trait(op, STACKS):
        return
    factors = op.inputs[:2]
    if all(v is not None and _is_stack(v) for v in factors):
        yield from filter(_is_stack, (*op.reads, *op.writes))


def _is_stack(v: Value) -> bool:
    return _is_map(v) and len(v.extents) >= 4 and v.extents[1] > 1


def _is_image(v: Value) -> bool:
    """Whether its channels take fewer bytes than a dot product sums in an int32 lane."""
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
