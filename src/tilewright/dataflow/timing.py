"""When each task starts, writes first and ends, once it is known what streams.

HPDC 2023 (see `graph`); the maximum over in-edges and over out-edges where the published code reads
one of them. Cycles are whole numbers; a task reads and writes at most one element of each edge per
cycle, an element leaves one cycle after what it needs came in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.dataflow.graph import Role, TaskGraph
from tilewright.dataflow.intervals import Intervals


@dataclass(frozen=True, slots=True)
class Times:
    """Per node, in cycles: `start`, `first` (its first output is there), `last` (it has ended)."""

    start: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, graph: TaskGraph) -> Times:
        """All zero, to be filled block by block."""
        return cls(*([0] * len(graph.nodes) for _ in range(3)))


def time_nodes(
    graph: TaskGraph, steady: Intervals, nodes: Iterable[int], begin: int, times: Times
) -> int:
    """Fill in the times of `nodes`, in topological order, none before cycle `begin`.

    Gives the cycle in which the last of them ends. Predecessors outside have their times already.
    """
    end = begin
    for n in nodes:
        start = begin
        for e in graph.ins[n]:
            u = graph.edges[e].source
            flows = steady.streams[e] and graph.nodes[n].role is not Role.BUFFER
            start = max(start, times.first[u] if flows else times.last[u])
        times.start[n] = start
        if graph.nodes[n].role is not Role.COMPUTE:
            times.first[n] = times.last[n] = start
        else:
            times.first[n], times.last[n] = _task(graph, steady, n, start)
        end = max(end, times.last[n])
    return end


def _task(graph: TaskGraph, steady: Intervals, n: int, start: int) -> tuple[int, int]:
    """When a task that starts at `start` writes first and ends.

    s_in = M / O(u) of its slowest in-stream and s_out = M / O(n), kept as pairs of integers.
    """
    reads, writes, pace = graph.consumed[n], graph.produced[n], steady.pace[n]
    thin = min(
        (graph.produced[graph.edges[e].source] for e in graph.ins[n] if steady.streams[e]),
        default=0,
    )
    into = (pace, thin) if thin else (1, 1)
    out = (pace, writes) if any(steady.streams[e] for e in graph.outs[n]) else (1, 1)
    read = start + _ceil(into[0] * (reads - 1), into[1])
    written = start + 1 + _ceil(out[0] * (writes - 1), out[1])
    last = max(read + max(1, _ceil(writes, reads)), written)
    if writes >= reads:
        return start + 1, last
    group = _ceil(reads, writes) - 1
    return start + _ceil(into[0] * group, into[1]) + 1, last


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
