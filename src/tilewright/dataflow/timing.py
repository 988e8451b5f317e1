"""When each task starts, first writes and ends, for given streams.

HPDC 2023 (see `graph`); the maximum over in-edges and over out-edges where the published code reads
one of them. Cycles are whole numbers; a task reads and writes at most one element of each edge per
cycle, an element leaves one cycle after what it needs came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tilewright.dataflow.follow import Cycles, read_times, write_times
from tilewright.dataflow.graph import Role, TaskGraph
from tilewright.dataflow.intervals import Intervals

FOLLOWED: Final = 1 << 14  # elements of a component that are followed one by one


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


class Clock:
    """Fills in the times of one block after another.

    Streams of a component of at most FOLLOWED elements are followed one by one; of a larger one the
    times are those of its steady state.
    """

    def __init__(self, graph: TaskGraph, steady: Intervals) -> None:
        self.graph: Final = graph
        self.steady: Final = steady
        self.times: Final = Times.of(graph)
        self.followed: Final = _followed(graph, steady)
        self._written: dict[int, Cycles] = {}

    def run(self, nodes: Iterable[int], begin: Mapping[int, int]) -> int:
        """The times of the nodes of a block, in topological order, none before its `begin`.

        Gives the cycle in which the last of them ends, 0 for none. Predecessors outside have their
        times already.
        """
        self._written.clear()
        end = 0
        for n in nodes:
            self._node(n, begin[n])
            end = max(end, self.times.last[n])
        return end

    def _node(self, n: int, ready: int) -> None:
        graph, times = self.graph, self.times
        streams = []
        for e in graph.ins[n]:
            u = graph.edges[e].source
            if self.steady.flows[e]:
                streams.append(u)
            else:
                ready = max(ready, times.last[u])
        if graph.nodes[n].role is not Role.COMPUTE:
            times.start[n] = times.first[n] = times.last[n] = ready
        elif n in self.followed:
            reads, writes = graph.consumed[n], graph.produced[n]
            read = read_times(reads, writes, ready, (self._written[u] for u in streams))
            written = self._written[n] = write_times(reads, writes, read)
            times.start[n], times.first[n] = int(read[0]), int(written[0])
            times.last[n] = int(written[-1])
        else:
            start = max([ready, *(times.first[u] for u in streams)])
            times.start[n] = start
            times.first[n], times.last[n] = _task(graph, self.steady, n, start)


def _followed(graph: TaskGraph, steady: Intervals) -> frozenset[int]:
    """The nodes of components of several tasks that move few elements."""
    members: dict[int, list[int]] = {}
    for n, c in enumerate(steady.component):
        members.setdefault(c, []).append(n)
    return frozenset(
        n
        for nodes in members.values()
        if len(nodes) > 1 and sum(graph.work[n] for n in nodes) <= FOLLOWED
        for n in nodes
    )


def _task(graph: TaskGraph, steady: Intervals, n: int, start: int) -> tuple[int, int]:
    """When a task that starts at `start` writes first and ends.

    s_in = M / O(u) of its slowest in-stream and s_out = M / O(n), kept as pairs of integers.
    """
    reads, writes, pace = graph.consumed[n], graph.produced[n], steady.pace[n]
    thin = min(
        (
            graph.produced[graph.edges[e].source]
            for e in graph.ins[n]
            if steady.streams[e]
        ),
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
