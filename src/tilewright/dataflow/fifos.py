"""FIFO sizes that avoid deadlocks and nearly all stalls.

For components whose times are known element by element (`followed`, see `timing`), the FIFOs are
sized for an execution that keeps all end times (`follow`); so a terminating execution exists, and
because tasks are determinate, none deadlocks. For the other components there are two sizes, of
which the larger one is used.

The first is for speed: the elements that arrive while the reader still waits for its slowest
stream, by the times of the schedule (HPDC 2023, see `graph`; there only for the streams of
undirected cycles, here for every reader of several streams, because a stalled task stalls all that
it feeds).

The second prevents deadlocks. Let all tasks of a block progress steadily over the same time span
[0, 1], each with a lag: a task with lag r reads its k-th elements at r + (k-1)/I and, if it writes
p elements for every q it reads, in lowest terms, its j-th output is available at w + (j-1)/O with w
= r + (q-1)/(q O), the least for which every output has its inputs; every further read then comes
after the outputs before it. A reader's lag is the largest w of its streams and of the end times of
what it reads from memory. In this schedule a FIFO of more than (r - w) O elements has room, freed
strictly earlier, whenever it is written to; and one terminating schedule suffices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from fractions import Fraction

from tilewright.base.dataclass import dataclass
from tilewright.dataflow.follow import fifo_rooms
from tilewright.dataflow.graph import Role, TaskGraph
from tilewright.dataflow.intervals import Intervals
from tilewright.dataflow.timing import NodeTimes


def fifo_sizes(
    graph: TaskGraph,
    blocks: Sequence[Sequence[int]],
    steady: Intervals,
    times: NodeTimes,
    followed: Set[int],
    *,
    every: bool,
) -> list[int]:
    """The FIFO size of each edge: for a stream at least 1 and at most its length; 0 for edges
    through memory or into a buffer. `blocks` in topological order.

    every: whether the end of every task matters, because another waits for its processing element.
    """
    sizes = [0] * len(graph.edges)
    for block in blocks:
        flows = [e for n in block for e in graph.ins[n] if steady.flows[e]]
        components: dict[int, list[int]] = {}
        for n in block:
            if n in followed:
                components.setdefault(steady.component[n], []).append(n)
        for nodes in components.values():
            rooms = fifo_rooms(graph, nodes, flows, times.start, every=every)
            for e, size in rooms.items():
                sizes[e] = size
        paced = [e for e in flows if graph.edges[e].target not in followed]
        lags = _lags(graph, steady, block) if paced else {}
        for e in paced:
            of_time = _arrives(graph, steady, times, e)
            of_lag = _lag_room(graph, lags, e)
            size = max(1, of_time, of_lag)
            sizes[e] = min(size, graph.produced[graph.edges[e].source])
    return sizes


def _arrives(graph: TaskGraph, steady: Intervals, times: NodeTimes, edge: int) -> int:
    """The elements that arrive before the reader starts."""
    writer = graph.edges[edge].source
    reader = graph.edges[edge].target
    wait = times.start[reader] - times.first[writer]
    written = Fraction(wait * graph.produced[writer], steady.pace[reader])
    return math.ceil(written)


@dataclass(frozen=True, slots=True)
class _Lag:
    """The lags of a node: of its first read and of its first output."""

    read: Fraction
    written: Fraction


_Lags = Mapping[int, _Lag]  # of each node of a block


def _lags(graph: TaskGraph, steady: Intervals, block: Sequence[int]) -> _Lags:
    lags: dict[int, _Lag] = {}
    for n in block:
        read = Fraction(0)
        for e in graph.ins[n]:
            u = graph.edges[e].source
            if u not in lags:
                continue
            if steady.flows[e]:
                there = lags[u].written
            else:
                there = _end(graph, lags, u)
            read = max(read, there)
        lags[n] = _Lag(read, read + _own_lag(graph, n))
    return lags


def _own_lag(graph: TaskGraph, n: int) -> Fraction:
    """The time from a task's first read to its first output."""
    if graph.nodes[n].role is not Role.COMPUTE:
        return Fraction(0)
    inputs = graph.rate(n).denominator
    return Fraction(inputs - 1, inputs * graph.produced[n])


def _end(graph: TaskGraph, lags: _Lags, n: int) -> Fraction:
    """When the last output of a task is available; a buffer adds no time."""
    first = lags[n].written
    if graph.nodes[n].role is not Role.COMPUTE:
        return first
    return first + 1 - Fraction(1, graph.produced[n])


def _lag_room(graph: TaskGraph, lags: _Lags, edge: int) -> int:
    writer = graph.edges[edge].source
    reader = graph.edges[edge].target
    between = lags[reader].read - lags[writer].written
    return int(between * graph.produced[writer]) + 1
