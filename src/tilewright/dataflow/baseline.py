"""The baseline schedule without streaming: each task waits for its complete inputs.

List scheduling by upward rank as in HEFT (Topcuoglu et al., IEEE TPDS 2002), on identical
processing elements and without communication costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.dataflow.graph import Role, TaskGraph


def upward_rank(graph: TaskGraph) -> list[int]:
    """Cycles from the start of each node to the end of the longest chain that starts with it."""
    rank = [0] * len(graph.nodes)
    for n in reversed(graph.order):
        rank[n] = graph.work[n] + max((rank[v] for v in graph.successors(n)), default=0)
    return rank


class TaskRun(NamedTuple):
    """Tasks of one node that start in the same cycle, and the cycle in which they end."""

    node: int
    tasks: int
    start: int
    last: int


@dataclass(frozen=True)
class UnstreamedSchedule:
    """A schedule without streams. Times are in cycles."""

    graph: TaskGraph
    pes: int
    runs: Sequence[TaskRun]

    @property
    def makespan(self) -> int:
        """The cycle in which the last task ends."""
        return max((run.last for run in self.runs), default=0)

    def to_json(self) -> dict[str, Any]:
        """As plain data: one bar for tasks that start together on adjacent elements."""
        return {
            "volume": str(self.graph.volume),
            "pes": self.pes,
            "makespan": self.makespan,
            "bars": list(self._bars()),
        }

    def _bars(self) -> Iterator[dict[str, Any]]:
        """Assign each run to the first free elements."""
        free = list(range(self.pes))
        busy: list[tuple[int, int]] = []
        for run in self.runs:
            while busy and busy[0][0] <= run.start:
                heapq.heappush(free, heapq.heappop(busy)[1])
            taken = [heapq.heappop(free) for _ in range(run.tasks)]
            for element in taken:
                heapq.heappush(busy, (run.last, element))
            node = self.graph.nodes[run.node]
            for _, group in groupby(enumerate(taken), lambda pair: pair[1] - pair[0]):
                elements = [element for _, element in group]
                yield {
                    "name": node.name,
                    "origin": node.origin,
                    "tasks": len(elements),
                    "element": elements[0],
                    "elements": len(elements),
                    "start": run.start,
                    "last": run.last,
                }


def nonstreaming_makespan(graph: TaskGraph, pes: int) -> int:
    """The makespan on `pes` processing elements; InputError for fewer than one."""
    return nonstreaming(graph, pes).makespan


def nonstreaming(graph: TaskGraph, pes: int) -> UnstreamedSchedule:
    """Schedule the graph on `pes` processing elements; InputError for fewer than one.

    At the end of each cycle, the ready tasks with the highest rank start on the free elements.
    """
    if whole(pes, 1) is None:
        raise InputError(
            f"{pes!r} processing elements", hint="give an integer of at least 1"
        )
    rank = upward_rank(graph)
    missing = [len(edges) for edges in graph.ins]
    ready: list[tuple[int, int]] = []
    running: list[tuple[int, int, int]] = []
    left = [node.count for node in graph.nodes]
    ended = [0] * len(graph.nodes)
    runs: list[TaskRun] = []
    now, idle = 0, pes

    def release(node: int) -> None:
        """Mark the node and all memory after it as done, and its waiting successors as ready."""
        done = [node]
        for n in done:
            for v in graph.successors(n):
                missing[v] -= 1
                if missing[v]:
                    continue
                if graph.nodes[v].role is Role.COMPUTE:
                    heapq.heappush(ready, (-rank[v], v))
                else:
                    done.append(v)

    for n, edges in enumerate(graph.ins):
        if not edges:
            release(n)
    while ready or running:
        while ready and idle:
            _, n = ready[0]
            count = min(idle, left[n])
            idle -= count
            left[n] -= count
            end = now + graph.work[n]
            runs.append(TaskRun(n, count, now, end))
            heapq.heappush(running, (end, n, count))
            if not left[n]:
                heapq.heappop(ready)
        now = running[0][0]
        while running and running[0][0] == now:
            _, n, count = heapq.heappop(running)
            idle += count
            ended[n] += count
            if ended[n] == graph.nodes[n].count:
                release(n)
    return UnstreamedSchedule(graph, pes, runs)
