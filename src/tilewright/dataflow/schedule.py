"""A schedule of a task graph on processing elements: which, when, side by side with whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final, TypeVar

from tilewright.base.errors import InputError
from tilewright.dataflow.blocks import Heuristic, members, spatial_blocks
from tilewright.dataflow.depth import critical_path, streaming_depth
from tilewright.dataflow.fifos import fifo_sizes
from tilewright.dataflow.graph import Role, TaskGraph
from tilewright.dataflow.intervals import Intervals, intervals, streaming
from tilewright.dataflow.timing import Times, time_nodes


class Discipline(StrEnum):
    """When a block may start.

    gang: when the block before it has ended. list: each set of tasks that stream to one another
    when its inputs are there and enough processing elements are free.
    """

    GANG = "gang"
    LIST = "list"


@dataclass(frozen=True)
class Schedule:
    """Blocks of co-scheduled tasks with their times, streams and FIFOs. Times are in cycles.

    Per node: `block` and `element` (the processing element), -1 for what has none; `blocks` holds
    the nodes of each block in topological order. Per edge: `fifos`, in elements.
    """

    graph: TaskGraph
    pes: int
    heuristic: Heuristic
    discipline: Discipline
    block: Sequence[int]
    blocks: Sequence[Sequence[int]]
    element: Sequence[int]
    steady: Intervals
    times: Times
    fifos: Sequence[int]

    @cached_property
    def makespan(self) -> int:
        """The cycle in which the last task ends."""
        return max(self.times.last, default=0)

    @property
    def speedup(self) -> float:
        """All work, one task after the other, over the makespan."""
        return sum(self.graph.work) / self.makespan if self.makespan else 1.0

    @property
    def utilisation(self) -> float:
        """The part of the processing elements' time that is work; a stream that waits is not."""
        return self.speedup / self.pes

    @property
    def slr(self) -> float:
        """The makespan over the critical path without streaming."""
        return self.makespan / max(1, critical_path(self.graph))

    @property
    def sslr(self) -> float:
        """The makespan over the streaming depth."""
        return self.makespan / max(1, streaming_depth(self.graph))

    @property
    def buffer_space(self) -> int:
        """Elements that FIFOs and buffers hold."""
        held = (e.unique for e in self.graph.edges if self._stores(e.target))
        return sum(self.fifos) + sum(held)

    def _stores(self, node: int) -> bool:
        return self.graph.nodes[node].role is Role.BUFFER

    def __repr__(self) -> str:
        return (
            f"Schedule({self.graph.name} on {self.pes} PEs, {self.heuristic}, {self.discipline}, "
            f"volume={self.graph.volume}: {self.makespan} cycles, {len(self.blocks)} blocks)"
        )


def schedule(
    graph: TaskGraph,
    pes: int,
    heuristic: Heuristic | str = Heuristic.LTS,
    discipline: Discipline | str = Discipline.GANG,
) -> Schedule:
    """Schedule `graph` on `pes` processing elements.

    Raises InputError for fewer than one, an unknown heuristic or discipline.
    """
    if pes < 1:
        raise InputError(
            f"{pes} processing elements", where="schedule", hint="give a whole number from 1"
        )
    how = _choice(Heuristic, heuristic)
    when = _choice(Discipline, discipline)
    block = spatial_blocks(graph, pes, how)
    blocks = members(block, graph.order)
    steady = intervals(graph, streaming(graph, block))
    times = Times.of(graph)
    element = _DISCIPLINES[when](graph, pes, blocks, steady, times)
    _memory(graph, times)
    fifos = fifo_sizes(graph, blocks, steady, times)
    return Schedule(graph, pes, how, when, block, blocks, element, steady, times, fifos)


def _gang(
    graph: TaskGraph,
    pes: int,
    blocks: Sequence[Sequence[int]],
    steady: Intervals,
    times: Times,
) -> list[int]:
    """The n-th task of a block on the n-th element, the block when the one before has ended."""
    element = [-1] * len(graph.nodes)
    now = 0
    for block in blocks:
        now = time_nodes(graph, steady, block, now, times)
        for position, n in enumerate(_tasks(graph, block)):
            element[n] = position
    return element


def _list(
    graph: TaskGraph,
    pes: int,
    blocks: Sequence[Sequence[int]],
    steady: Intervals,
    times: Times,
) -> list[int]:
    """Each task of a block on an element of its own, the components on the first that are free."""
    element = [-1] * len(graph.nodes)
    free = [0] * pes
    for block in blocks:
        tasks = sorted(_tasks(graph, block), key=lambda n: steady.component[n])
        begin: dict[int, int] = {}
        for position, n in zip(sorted(range(pes), key=free.__getitem__), tasks, strict=False):
            element[n] = position
            begin[steady.component[n]] = free[position]
        for n in block:
            time_nodes(graph, steady, (n,), begin.get(steady.component[n], 0), times)
        for n in tasks:
            free[element[n]] = times.last[n]
    return element


def _tasks(graph: TaskGraph, block: Sequence[int]) -> list[int]:
    return [n for n in block if graph.nodes[n].role is Role.COMPUTE]


_E = TypeVar("_E", bound=StrEnum)
_Run = Callable[[TaskGraph, int, Sequence[Sequence[int]], Intervals, Times], list[int]]
_DISCIPLINES: Final[dict[Discipline, _Run]] = {Discipline.GANG: _gang, Discipline.LIST: _list}


def _memory(graph: TaskGraph, times: Times) -> None:
    """Sinks are full when their last writer ends; sources are there from the beginning."""
    for n, node in enumerate(graph.nodes):
        if node.role is Role.SINK:
            done = max(times.last[u] for u in graph.predecessors(n))
            times.start[n] = times.first[n] = times.last[n] = done


def _choice(kind: type[_E], value: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InputError(f"no {kind.__name__.lower()} {value!r}", hint=f"known: {known}") from None
