"""When each task starts, first writes and ends, for given streams.

HPDC 2023 (see `graph`); with the maximum over in-edges and over out-edges where the published code
uses only one of them. Cycles are integers; a task reads and writes at most one element of each edge
per cycle, and an output is available one cycle after its last input was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.dataflow.follow import Cycles, read_times, write_times
from tilewright.dataflow.graph import Role, TaskGraph
from tilewright.dataflow.intervals import Intervals

FOLLOWED: Final = 1 << 14  # the most elements of a component to follow one by one


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Per node, in cycles: `start`, `first` (first output available), `last` (ended)."""

    start: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, graph: TaskGraph) -> NodeTimes:
        """All zero, to be filled block by block."""
        return cls(*([0] * len(graph.nodes) for _ in range(3)))

    def set(self, node: int, start: int, first: int, last: int) -> None:
        """Set the times of one node."""
        self.start[node] = start
        self.first[node] = first
        self.last[node] = last


class BlockClock:
    """Computes the times of one block after another.

    In a component with at most FOLLOWED elements, streams are followed element by element; in a
    larger one the times are those of its steady state.
    """

    def __init__(self, graph: TaskGraph, steady: Intervals) -> None:
        self.graph: Final = graph
        self.steady: Final = steady
        self.times: Final = NodeTimes.of(graph)
        self.followed: Final = _followed(graph, steady)
        self._written: dict[int, Cycles] = {}

    def run(self, nodes: Iterable[int], begin: Mapping[int, int]) -> int:
        """Compute the times of a block's nodes, in topological order, none before its `begin`.

        Returns the cycle in which the last of them ends, 0 for none. The times of predecessors
        outside the block must be known.
        """
        self._written.clear()
        end = 0
        for n in nodes:
            self._node(n, begin[n])
            end = max(end, self.times.last[n])
        return end

    def _node(self, n: int, ready: int) -> None:
        graph = self.graph
        times = self.times
        streams = []
        for e in graph.ins[n]:
            u = graph.edges[e].source
            if self.steady.flows[e]:
                streams.append(u)
            else:
                ready = max(ready, times.last[u])
        if graph.nodes[n].role is not Role.COMPUTE:
            times.set(n, ready, ready, ready)
        elif n in self.followed:
            self._follow(n, ready, streams)
        else:
            start = max([ready, *(times.first[u] for u in streams)])
            first, last = _task(graph, self.steady, n, start)
            times.set(n, start, first, last)

    def _follow(self, n: int, ready: int, streams: Iterable[int]) -> None:
        """Compute the times of a task, following its streams from these nodes by element."""
        reads = self.graph.consumed[n]
        writes = self.graph.produced[n]
        arrivals = [self._written[u] for u in streams]
        read = read_times(reads, writes, ready, arrivals)
        written = write_times(reads, writes, read)
        self._written[n] = written
        start = int(read[0])
        first = int(written[0])
        last = int(written[-1])
        self.times.set(n, start, first, last)


def _followed(graph: TaskGraph, steady: Intervals) -> frozenset[int]:
    """The nodes of components with several tasks that move few elements."""
    members: dict[int, list[int]] = {}
    for n, c in enumerate(steady.component):
        members.setdefault(c, []).append(n)
    found: list[int] = []
    for nodes in members.values():
        elements = sum(graph.work[n] for n in nodes)
        if len(nodes) > 1 and elements <= FOLLOWED:
            found += nodes
    return frozenset(found)


def _task(graph: TaskGraph, steady: Intervals, n: int, start: int) -> tuple[int, int]:
    """When a task that starts at `start` first writes and ends.

    s_in = M / O(u) of its slowest in-stream and s_out = M / O(n), as pairs of integers.
    """
    reads = graph.consumed[n]
    writes = graph.produced[n]
    pace = steady.pace[n]
    streamed = [e for e in graph.ins[n] if steady.streams[e]]
    into = out = (1, 1)
    if streamed:
        thinnest = min(graph.produced[graph.edges[e].source] for e in streamed)
        into = (pace, thinnest)
    if any(steady.streams[e] for e in graph.outs[n]):
        out = (pace, writes)
    read = start + _cycles(into, reads - 1)
    written = start + 1 + _cycles(out, writes - 1)
    of_last_read = max(1, _ceil(writes, reads))
    last = max(read + of_last_read, written)
    if writes >= reads:
        return start + 1, last
    group = _ceil(reads, writes) - 1
    first = start + _cycles(into, group) + 1
    return first, last


def _cycles(interval: tuple[int, int], elements: int) -> int:
    """Cycles of elements, rounded up; interval: cycles per element, as a pair of integers."""
    numerator, denominator = interval
    return _ceil(numerator * elements, denominator)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
