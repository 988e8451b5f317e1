"""Recomputing cheap forward results in the backward part instead of keeping them.

A result is recomputed from its operator's operands, which must be kept or recomputed themselves.
Results of maps are chosen, the largest first, if this reduces the peak memory. A recomputed
operator yields the same bits, as it is the same operator on the same operands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.base.errors import MemoryLimitError
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import IMPURE, MOVES_DATA, POINTWISE

# Marks a recomputed operation, so that it is not merged with the original.
RECOMPUTED = "recomputed"


def rematerialize(
    graph: Graph,
    backward: int,
    limit: int | None = None,
) -> Graph:
    """The graph with cheap results recomputed after its first `backward` operations.

    limit: of the bytes of inner results alive at once; None: as few as possible. Raises
    MemoryLimitError if recomputing all cheap results does not reach it.
    """
    found = graph
    chosen: list[Value] = []
    least = peak(graph)
    for v in _candidates(graph, backward):
        if limit is not None and least <= limit:
            break
        trial = _recomputing(graph, backward, [*chosen, v])
        bytes_now = peak(trial)
        if bytes_now < least:
            chosen.append(v)
            found, least = trial, bytes_now
    if limit is not None and least > limit:
        raise MemoryLimitError(
            f"the step keeps {least:,} bytes of results at once, over the limit of {limit:,}",
            where=f"graph {graph.name!r}",
            hint="use smaller batches, or raise the limit",
        )
    return found


def peak(graph: Graph) -> int:
    """The most bytes of inner results alive at once, operator by operator.

    Results of the graph are the caller's and do not count.
    """
    last: dict[Value, int] = {}
    for n, op in enumerate(graph.operations):
        last |= dict.fromkeys((*op.reads, *op.writes), n)
    results = set(graph.outputs)
    ends: dict[int, int] = {}
    now = most = 0
    for n, op in enumerate(graph.operations):
        for v in (v for v in op.writes if v not in results):
            size = _bytes(v)
            now += size
            ends[last[v]] = ends.get(last[v], 0) + size
        most = max(most, now)
        now -= ends.pop(n, 0)
    return most


def _bytes(v: Value) -> int:
    if not v.static or v.dtype is None:
        return 0
    return math.prod(v.extents) * max(v.dtype.bits // 8, 1)


def _candidates(graph: Graph, backward: int) -> list[Value]:
    """The results of forward maps that the backward part reads, the largest first."""
    read = {v for op in graph.operations[backward:] for v in op.reads}
    kept = set(graph.outputs)
    found = [
        v
        for op in graph.operations[:backward]
        if _is_cheap(op)
        for v in op.writes
        if v in read and v not in kept
    ]
    return sorted(found, key=_bytes, reverse=True)


def _is_cheap(op: Operation) -> bool:
    maps = has_trait(op, POINTWISE | MOVES_DATA) and not has_trait(op, IMPURE)
    return maps and len(op.writes) == 1 and not op.subgraphs


def _recomputing(
    graph: Graph,
    backward: int,
    chosen: Sequence[Value],
) -> Graph:
    """The graph with some results' operators copied before their first use in the backward part."""
    makers = {v: graph.producers[v] for v in chosen}
    operations = list(graph.operations[:backward])
    copies: dict[Value, Value] = {}
    for op in graph.operations[backward:]:
        for v in op.reads:
            if v in makers:
                _copy(v, makers, copies, operations)
        operations.append(_reading(op, copies))
    return graph.with_operations(operations)


def _copy(
    v: Value,
    makers: Mapping[Value, Operation],
    copies: dict[Value, Value],
    operations: list[Operation],
) -> None:
    """Add a copy of the operator of `v`, after its operands that are recomputed, too."""
    if v in copies:
        return
    op = makers[v]
    for operand in op.reads:
        if operand in makers:
            _copy(operand, makers, copies, operations)
    copies[v] = replace(v, name=f"{v.name}/again")
    again = replace(
        _reading(op, copies),
        outputs=(copies[v],),
        attributes={**op.attributes, RECOMPUTED: 1},
        name=f"{op.label}/again",
    )
    operations.append(again)


def _reading(op: Operation, copies: Mapping[Value, Value]) -> Operation:
    """The operation with its operands replaced by copies, if they exist."""
    if not any(v in copies for v in op.reads):
        return op
    inputs = tuple(None if v is None else copies.get(v, v) for v in op.inputs)
    return replace(op, inputs=inputs)
