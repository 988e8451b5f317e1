"""The times of a block by sweeps over whole streams: equal to those of `simulate`, but faster.

A sweep visits the tasks in topological order and gives each element the least time that the rules
of `simulate` allow, given the current times of the others. For a task with at most as many outputs
as inputs, with a(k) the arrival of the latest k-th elements, b(j) the time when there is room for
output j, and M(k) = floor((k-1) O / I),

    r(k) = max(a(k), b(M(k)), r(k-1) + 1),   w(j) = max(r(ceil(j I / O)) + 1, b(j)),

and for one with more outputs

    w(j) = max(a(ceil(j I / O)) + 1, b(j), w(j-1) + 1),   r(k) = max(a(k), w(M(k))),

since all other rules follow from these. Each is a running maximum, one step of NumPy. The first
sweep ignores full FIFOs, so its times are never too late; a sweep that changes nothing has found
the least times that satisfy all rules.

Rules that require one event no earlier than another may form a cycle, which is a deadlock that
times alone do not show. So times are pairs of a cycle and the number of rules that led to it,
compared in this order; in a cyclic dependence the second grows without bound. A pair is stored as
one number, and a step of a rule adds to both parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.dataflow.graph import Role, TaskGraph

Pairs = np.ndarray[Any, np.dtype[np.int64]]
BITS: Final = 31  # bits of a pair that count rules
NEXT: Final = (1 << BITS) + 1  # one cycle later, by one more rule
SWEEPS: Final = 24  # after which the element-by-element simulation is faster


@dataclass(frozen=True, slots=True)
class NodeCycles:
    """The cycles of a node's first read and of its end."""

    start: int
    last: int


def sweep(
    graph: TaskGraph,
    nodes: Sequence[int],
    rooms: Mapping[int, int],
    opening: Mapping[int, int],
    last: Sequence[int],
) -> dict[int, NodeCycles] | None:
    """The spans of a block's nodes; None if the sweeps do not converge, such as in a deadlock.

    nodes: in topological order. rooms: of each stream between them. opening: the earliest start of
    each. last: the end of each node of the graph, if known.
    """
    if any(room < 1 for room in rooms.values()):
        return None
    ends = [end << BITS for end in last]
    compute = [n for n in nodes if graph.nodes[n].role is Role.COMPUTE]
    tasks = {n: _SweptTask(graph, n, rooms) for n in compute}
    for _ in range(SWEEPS):
        changed = False
        for n in nodes:
            stored = [e for e in graph.ins[n] if e not in rooms]
            memory = max((ends[graph.edges[e].source] for e in stored), default=0)
            end = max(memory + 1, opening[n] << BITS)
            if n in tasks:
                changed |= tasks[n].advance(tasks, end)
                end = int(tasks[n].written[-1])
            changed |= end != ends[n]
            ends[n] = end
        if not changed:
            return {n: _span(tasks.get(n), ends[n]) for n in nodes}
    return None


def _span(task: _SweptTask | None, end: int) -> NodeCycles:
    """The cycles of a node that ends at the pair `end`; memory has a single time."""
    if task is None:
        first = end
    else:
        first = int(task.read[0])
    return NodeCycles(first >> BITS, end >> BITS)


class _SweptTask:
    """A task of the block: when it reads and writes, as far as known."""

    __slots__ = ("into", "needed", "out", "read", "steps", "written", "before", "wide")

    def __init__(self, graph: TaskGraph, node: int, rooms: Mapping[int, int]) -> None:
        reads = graph.consumed[node]
        writes = graph.produced[node]
        ins = [e for e in graph.ins[node] if e in rooms]
        outs = [e for e in graph.outs[node] if e in rooms]
        self.into = [graph.edges[e].source for e in ins]
        self.out = [(graph.edges[e].target, rooms[e]) for e in outs]
        self.wide = writes > reads
        self.before = np.arange(reads) * writes // reads
        inputs = -np.arange(1, writes + 1) * reads
        self.needed = -(inputs // writes) - 1
        self.steps = np.arange(max(reads, writes)) * NEXT
        self.read = np.zeros(reads, np.int64)
        self.written = np.zeros(writes, np.int64)

    def advance(self, tasks: Mapping[int, _SweptTask], ready: int) -> bool:
        """Update to the least times, given those of other tasks; whether any changed."""
        read = np.full(len(self.read), ready)
        for u in self.into:
            arrival = tasks[u].written + 1
            np.maximum(read, arrival, out=read)
        free = np.zeros(len(self.written), np.int64)
        for v, room in self.out:
            if room < len(free):
                taken = tasks[v].read[:-room] + 1
                np.maximum(free[room:], taken, out=free[room:])
        advanced = self._wide if self.wide else self._narrow
        read, written = advanced(read, free)
        same_reads = np.array_equal(read, self.read)
        same_writes = np.array_equal(written, self.written)
        self.read = read
        self.written = written
        return not (same_reads and same_writes)

    def _narrow(self, read: Pairs, free: Pairs) -> tuple[Pairs, Pairs]:
        """The times of a task with at most as many outputs as inputs."""
        first = np.searchsorted(self.before, 1)
        room = free[self.before[first:] - 1]
        np.maximum(read[first:], room + 1, out=read[first:])
        read = self._one_by_one(read)
        written = read[self.needed] + NEXT
        return read, np.maximum(written, free)

    def _wide(self, read: Pairs, free: Pairs) -> tuple[Pairs, Pairs]:
        """The times of a task with more outputs than inputs."""
        ready = read[self.needed] + NEXT
        written = self._one_by_one(np.maximum(ready, free))
        earlier = written[self.before[1:] - 1]
        np.maximum(read[1:], earlier + 1, out=read[1:])
        return read, written

    def _one_by_one(self, when: Pairs) -> Pairs:
        """The least times, none before `when` and each at least a cycle after the previous one."""
        found: Pairs = np.maximum.accumulate(when - self.steps)
        return found + self.steps
