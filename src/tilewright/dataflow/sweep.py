"""The times of a block by sweeps over whole streams: equal to those of `simulate`, but faster.

A sweep takes the tasks in topological order and gives each element the least time that the rules
of `simulate` allow, by the times known of the others. For a task that gives no more outputs than it
reads, with a(k) the arrival of the latest k-th elements, b(j) when there is room for output j, and
M(k) = floor((k-1) O / I),

    r(k) = max(a(k), b(M(k)), r(k-1) + 1),   w(j) = max(r(ceil(j I / O)) + 1, b(j)),

and for one that gives more

    w(j) = max(a(ceil(j I / O)) + 1, b(j), w(j-1) + 1),   r(k) = max(a(k), w(M(k))),

since all other rules follow from these. Each is a running maximum, one step of NumPy. The first
sweep knows of no full FIFO, so that its times are never too late; a sweep that changes nothing has
found the least times that satisfy all rules.

Rules that want one event no earlier than another may form a circle, which is a deadlock that times
alone do not show. So times are pairs, of a cycle and of how many rules led to it, that are compared
in this order; with a circle the second grows without end. A pair is one number, and a step of a
rule adds to both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tilewright.dataflow.graph import Role, TaskGraph

Pairs = np.ndarray[Any, np.dtype[np.int64]]
BITS: Final = 31  # of a pair that count rules
NEXT: Final = (1 << BITS) + 1  # a cycle later, by one rule more
SWEEPS: Final = 24  # after which it is quicker to go element by element


@dataclass(frozen=True, slots=True)
class Span:
    """Cycles of a node's first read and of its end."""

    start: int
    last: int


def sweep(
    graph: TaskGraph,
    nodes: Sequence[int],
    rooms: Mapping[int, int],
    opening: Mapping[int, int],
    last: Sequence[int],
) -> dict[int, Span] | None:
    """The spans of a block's nodes; None where no sweep was the last, in a deadlock at least.

    nodes: in topological order. rooms: of each stream between them. opening: the
    cycle before which each does not start. last: per node of the graph its end, if that is known.
    """
    if any(room < 1 for room in rooms.values()):
        return None
    ends = {n: last[n] << BITS for n in range(len(graph.nodes))}
    tasks = {
        n: _Task(graph, n, rooms) for n in nodes if graph.nodes[n].role is Role.COMPUTE
    }
    for _ in range(SWEEPS):
        changed = False
        for n in nodes:
            memory = (
                ends[graph.edges[e].source] for e in graph.ins[n] if e not in rooms
            )
            ready = max(max(memory, default=0) + 1, opening[n] << BITS)
            if n in tasks:
                changed |= tasks[n].advance(tasks, ready)
                ready = int(tasks[n].written[-1])
            changed |= ready != ends[n]
            ends[n] = ready
        if not changed:
            first = {n: int(tasks[n].read[0]) if n in tasks else ends[n] for n in nodes}
            return {n: Span(first[n] >> BITS, ends[n] >> BITS) for n in nodes}
    return None


class _Task:
    """A task of the block: when it reads and writes, as far as is known."""

    __slots__ = ("into", "needed", "out", "read", "steps", "written", "before", "wide")

    def __init__(self, graph: TaskGraph, node: int, rooms: Mapping[int, int]) -> None:
        reads, writes = graph.consumed[node], graph.produced[node]
        self.into = [graph.edges[e].source for e in graph.ins[node] if e in rooms]
        self.out = [
            (graph.edges[e].target, rooms[e]) for e in graph.outs[node] if e in rooms
        ]
        self.wide = writes > reads
        self.before = np.arange(reads) * writes // reads
        self.needed = -(-np.arange(1, writes + 1) * reads // writes) - 1
        self.steps = np.arange(max(reads, writes)) * NEXT
        self.read = np.zeros(reads, np.int64)
        self.written = np.zeros(writes, np.int64)

    def advance(self, tasks: Mapping[int, _Task], ready: int) -> bool:
        """The least times by those of the other tasks; whether any is new."""
        read = np.full(len(self.read), ready)
        for u in self.into:
            np.maximum(read, tasks[u].written + 1, out=read)
        free = np.zeros(len(self.written), np.int64)
        for v, room in self.out:
            if room < len(free):
                np.maximum(free[room:], tasks[v].read[:-room] + 1, out=free[room:])
        read, written = (self._wide if self.wide else self._narrow)(read, free)
        changed = not (
            np.array_equal(read, self.read) and np.array_equal(written, self.written)
        )
        self.read, self.written = read, written
        return changed

    def _narrow(self, read: Pairs, free: Pairs) -> tuple[Pairs, Pairs]:
        first = np.searchsorted(self.before, 1)
        np.maximum(read[first:], free[self.before[first:] - 1] + 1, out=read[first:])
        read = np.maximum.accumulate(read - self.steps) + self.steps
        return read, np.maximum(read[self.needed] + NEXT, free)

    def _wide(self, read: Pairs, free: Pairs) -> tuple[Pairs, Pairs]:
        written = np.maximum(read[self.needed] + NEXT, free)
        written = np.maximum.accumulate(written - self.steps) + self.steps
        np.maximum(read[1:], written[self.before[1:] - 1] + 1, out=read[1:])
        return read, written
