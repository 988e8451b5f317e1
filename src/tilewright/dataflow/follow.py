"""Following streams element by element: when each is written and read, and FIFO sizes.

The rules are the simulator's (`simulate`) with unlimited FIFOs. A task reads its k-th elements in
cycle r(k), when they are available and its earlier outputs, M(k) = floor((k-1) O / I) of them, have
been written; output j is available a cycle after its last input was read. As a recurrence,

    r(k) = max(a(k), r(k-1) + d(k)),   d(k) = max(1, M(k) - M(k-1)),

with a(k) the arrival of the latest of the k-th elements. Its solution is a running maximum of
a(k) - D(k), with D the sum of d, so a whole stream is one step of NumPy.

FIFO sizes follow from the latest times, by the same rules backwards from the end of each task that
writes to memory (of every task if another waits for its processing element). A FIFO that is large
enough for these times delays nothing that matters: an execution exists that keeps all these ends,
so the earliest execution, the simulator's, keeps them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from tilewright.dataflow.graph import TaskGraph

Cycles = np.ndarray[Any, np.dtype[np.int64]]
FAR: Final = 1 << 60  # later than any cycle


def read_times(
    reads: int, writes: int, ready: int, arrivals: Iterable[Cycles]
) -> Cycles:
    """When a task reads, if it may start in cycle `ready`; `arrivals`: of each stream."""
    steps = (
        _given(np.arange(reads), reads, writes) if writes > reads else np.arange(reads)
    )
    when = np.full(reads, ready, np.int64)
    for stream in arrivals:
        np.maximum(when, stream, out=when)
    found: Cycles = np.maximum.accumulate(when - steps) + steps
    return found


def write_times(reads: int, writes: int, read: Cycles) -> Cycles:
    """When the outputs of a task that reads at `read` are available."""
    last = _needed(reads, writes) - 1
    if writes <= reads:
        return read[last] + 1
    found: Cycles = read[last] + np.arange(1, writes + 1) - _given(last, reads, writes)
    return found


def latest_times(reads: int, writes: int, due: Cycles) -> tuple[Cycles, Cycles]:
    """The latest reads and writes of a task whose outputs are due at `due`."""
    last = _needed(reads, writes) - 1
    if writes >= reads:
        written = _before(due)
        first = _given(np.arange(reads), reads, writes)
        return written[first] - 1, written
    limit = np.full(reads, FAR, np.int64)
    limit[last] = due - 1
    read = _before(limit)
    following = np.append(read[1:], FAR)
    return read, np.minimum(due, following[last])


def room(written: Cycles, read: Cycles) -> int:
    """The size that a FIFO needs when its ends run at these times.

    Room is freed strictly before it is used, so no cycle of tasks waits for itself within one clock
    cycle.
    """
    freed = np.searchsorted(read, written, side="left")
    return max(1, int((np.arange(1, len(written) + 1) - freed).max()))


def fifo_rooms(
    graph: TaskGraph,
    nodes: Iterable[int],
    flows: Iterable[int],
    start: Sequence[int],
    *,
    every: bool,
) -> dict[int, int]:
    """The FIFO sizes of a component so that none delays an end that matters.

    nodes: its tasks in topological order; flows: its streams; start: when each task reads first;
    every: whether all ends matter, or only those of tasks that write to memory.
    """
    order = list(nodes)
    streams = set(flows)
    written: dict[int, Cycles] = {}
    for n in order:
        arrivals = [
            written[graph.edges[e].source] for e in graph.ins[n] if e in streams
        ]
        reads = graph.consumed[n]
        writes = graph.produced[n]
        written[n] = write_times(
            reads, writes, read_times(reads, writes, start[n], arrivals)
        )
    late_read: dict[int, Cycles] = {}
    rooms: dict[int, int] = {}
    for n in reversed(order):
        outs = [e for e in graph.outs[n] if e in streams]
        due = np.full(graph.produced[n], FAR, np.int64)
        if every or len(outs) < len(graph.outs[n]):
            due[-1] = written[n][-1]
        for e in outs:
            np.minimum(due, late_read[graph.edges[e].target], out=due)
        read, late = latest_times(graph.consumed[n], graph.produced[n], due)
        late_read[n] = read
        for e in outs:
            rooms[e] = room(late, late_read[graph.edges[e].target])
    return rooms


def _given(k: Cycles, reads: int, writes: int) -> Cycles:
    """The number of outputs available after k inputs."""
    found: Cycles = k * writes // reads
    return found


def _needed(reads: int, writes: int) -> Cycles:
    """The number of inputs that each output needs."""
    found: Cycles = -(-np.arange(1, writes + 1) * reads // writes)
    return found


def _before(due: Cycles) -> Cycles:
    """The latest times, one per cycle, none after it is due."""
    steps = np.arange(len(due))
    found: Cycles = np.minimum.accumulate((due - steps)[::-1])[::-1] + steps
    return found
