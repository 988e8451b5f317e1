"""A schedule of a task graph: which processing element runs which task, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.dataflow.blocks import Heuristic, spatial_blocks
from tilewright.dataflow.copies import Division, divided, expanded
from tilewright.dataflow.depth import critical_path, streaming_depth
from tilewright.dataflow.fifos import fifo_sizes
from tilewright.dataflow.graph import Role, TaskGraph, named
from tilewright.dataflow.intervals import Intervals, intervals, streaming
from tilewright.dataflow.timing import BlockClock, NodeTimes


class Discipline(StrEnum):
    """When a block may start.

    gang: when the previous block has ended. list: each set of tasks that stream to one another
    starts when its inputs are complete and enough processing elements are free.
    """

    GANG = "gang"
    LIST = "list"


@dataclass(frozen=True)
class TaskSchedule:
    """Blocks of co-scheduled tasks with their times, streams and FIFOs. Times are in cycles.

    graph: the scheduled graph, in which nodes with tasks in several blocks are divided. Per node:
    `block` and `element` (the first processing element), -1 if it has none, and `turns`: the number
    of consecutive blocks with its tasks, the same number in each. `blocks` holds the nodes of each
    block in topological order, with a node's turns listed once.
    """

    graph: TaskGraph
    pes: int
    heuristic: Heuristic
    discipline: Discipline
    block: Sequence[int]
    turns: Sequence[int]
    blocks: Sequence[Sequence[int]]
    element: Sequence[int]
    steady: Intervals
    times: NodeTimes
    followed: Set[int]

    @cached_property
    def fifos(self) -> Sequence[int]:
        """The size of each edge's FIFO in elements."""
        return fifo_sizes(
            self.graph,
            self.blocks,
            self.steady,
            self.times,
            self.followed,
            every=self.discipline is Discipline.LIST,
        )

    @cached_property
    def makespan(self) -> int:
        """The cycle in which the last task ends."""
        return max(self.times.last, default=0)

    @property
    def speedup(self) -> float:
        """The total work of all tasks divided by the makespan."""
        if self.makespan:
            return self.graph.total_work / self.makespan
        return 1.0

    @property
    def utilization(self) -> float:
        """The share of the elements' time spent on work; waiting for a stream does not count."""
        return self.speedup / self.pes

    @property
    def slr(self) -> float:
        """The makespan divided by the critical path without streaming."""
        return self.makespan / max(1, critical_path(self.graph))

    @property
    def sslr(self) -> float:
        """The makespan divided by the streaming depth."""
        return self.makespan / max(1, streaming_depth(self.graph))

    @property
    def rounds(self) -> int:
        """The number of blocks that run one after the other."""
        return sum(max(self.turns[n] for n in block) for block in self.blocks)

    @property
    def fifo_space(self) -> int:
        """The total size of all FIFOs in elements."""
        nodes = self.graph.nodes
        ends = (
            (nodes[e.source].count, nodes[e.target].count) for e in self.graph.edges
        )
        return sum(size * a * b for size, (a, b) in zip(self.fifos, ends, strict=True))

    def to_json(self) -> dict[str, Any]:
        """As plain data: a bar for the tasks of each node, from its first processing element."""
        nodes = self.graph.nodes
        bars = [
            {
                "name": nodes[n].name,
                "origin": nodes[n].origin,
                "tasks": nodes[n].count,
                "block": self.block[n],
                "element": self.element[n],
                "elements": nodes[n].count // self.turns[n],
                "start": self.times.start[n],
                "last": self.times.last[n],
            }
            for n in range(len(nodes))
            if self.element[n] >= 0
        ]
        return {
            "volume": str(self.graph.volume),
            "pes": self.pes,
            "makespan": self.makespan,
            "blocks": self.rounds,
            "bars": bars,
        }

    def __repr__(self) -> str:
        return (
            f"Schedule({self.graph.name} on {self.pes} PEs, {self.heuristic}, {self.discipline}, "
            f"volume={self.graph.volume}: {self.makespan} cycles, {self.rounds} blocks)"
        )


def schedule(
    graph: TaskGraph,
    pes: int,
    heuristic: Heuristic | str = Heuristic.LTS,
    discipline: Discipline | str = Discipline.GANG,
) -> TaskSchedule:
    """Schedule `graph` on `pes` processing elements.

    A list schedule separates all tasks of a node, because they may start at different times. Raises
    InputError for fewer than one element, and for an unknown heuristic or discipline.
    """
    if whole(pes, 1) is None:
        raise InputError(
            f"{pes!r} processing elements",
            where="schedule",
            hint="give an integer of at least 1",
        )
    how = named(Heuristic, heuristic)
    when = named(Discipline, discipline)
    separated = expanded(graph) if when is Discipline.LIST else graph
    parts = divided(separated, spatial_blocks(separated, pes, how))
    blocks = parts.members()
    steady = intervals(parts.graph, streaming(parts.graph, parts.block))
    clock = BlockClock(parts.graph, steady)
    element = _DISCIPLINES[when](parts, pes, blocks, clock)
    _memory(parts.graph, clock.times)
    return TaskSchedule(
        parts.graph,
        pes,
        how,
        when,
        parts.block,
        parts.turns,
        blocks,
        element,
        steady,
        clock.times,
        clock.followed,
    )


def _gang(
    parts: Division, pes: int, blocks: Sequence[Sequence[int]], clock: BlockClock
) -> list[int]:
    """The n-th task of a block runs on the n-th element, each block after the previous one."""
    graph = parts.graph
    element = [-1] * len(graph.nodes)
    now = 0
    for block in blocks:
        begin, now = now, max(now, clock.run(block, dict.fromkeys(block, now)))
        position = 0
        for n in _tasks(graph, block):
            element[n] = position
            position += graph.nodes[n].count // parts.turns[n]
            if parts.turns[n] > 1:
                now = clock.times.last[n] = begin + (now - begin) * parts.turns[n]
    return element


def _list(
    parts: Division, pes: int, blocks: Sequence[Sequence[int]], clock: BlockClock
) -> list[int]:
    """Run each task of a block on a separate element, the components on the first free ones."""
    graph = parts.graph
    element = [-1] * len(graph.nodes)
    component = clock.steady.component
    free = [0] * pes
    for block in blocks:
        tasks = sorted(_tasks(graph, block), key=component.__getitem__)
        begin: dict[int, int] = {}
        for position, n in zip(
            sorted(range(pes), key=free.__getitem__), tasks, strict=False
        ):
            element[n] = position
            begin[component[n]] = free[position]
        clock.run(block, {n: begin.get(component[n], 0) for n in block})
        for n in tasks:
            free[element[n]] = clock.times.last[n]
    return element


def _tasks(graph: TaskGraph, block: Sequence[int]) -> list[int]:
    return [n for n in block if graph.nodes[n].role is Role.COMPUTE]


_Run = Callable[[Division, int, Sequence[Sequence[int]], BlockClock], list[int]]
_DISCIPLINES: Final[dict[Discipline, _Run]] = {
    Discipline.GANG: _gang,
    Discipline.LIST: _list,
}


def _memory(graph: TaskGraph, times: NodeTimes) -> None:
    """Sinks are complete when their last writer ends; sources are available from the start."""
    for n, node in enumerate(graph.nodes):
        if node.role is Role.SINK:
            done = max(times.last[u] for u in graph.predecessors(n))
            times.start[n] = times.first[n] = times.last[n] = done
