"""The cost of a combination of expansions on N processing elements, cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.dataflow.baseline import nonstreaming_makespan
from tilewright.dataflow.blocks import Heuristic
from tilewright.dataflow.depth import critical_path, streaming_depth
from tilewright.dataflow.graph import Role, TaskGraph, Volume
from tilewright.dataflow.lower import OperatorNetwork, program
from tilewright.dataflow.results import Choice, ExploredPoint, ResultStore
from tilewright.dataflow.schedule import Discipline, TaskSchedule, schedule

GRAPHS: Final = 1000  # cached task graphs of combinations
LISTED: Final = 4000  # maximum number of tasks of a list schedule


class Method(StrEnum):
    """A way to schedule a combination.

    lts, rlx: one block after the other, formed by that heuristic. list-lts, list-rlx: the same
    blocks, but tasks start as soon as they can; up to LISTED tasks, which are separated. baseline:
    no streams, each task waits for its complete inputs.
    """

    LTS = "lts"
    RLX = "rlx"
    LIST_LTS = "list-lts"
    LIST_RLX = "list-rlx"
    BASELINE = "baseline"


GANG: Final = (Method.LTS, Method.RLX)
LISTS: Final = (Method.LIST_LTS, Method.LIST_RLX)
_STREAMING: Final[Mapping[Method, tuple[Heuristic, Discipline]]] = {
    Method.LTS: (Heuristic.LTS, Discipline.GANG),
    Method.RLX: (Heuristic.RLX, Discipline.GANG),
    Method.LIST_LTS: (Heuristic.LTS, Discipline.LIST),
    Method.LIST_RLX: (Heuristic.RLX, Discipline.LIST),
}


def streaming(graph: TaskGraph, pes: int, method: Method) -> TaskSchedule:
    """Schedule a graph by a streaming method."""
    heuristic, discipline = _STREAMING[method]
    return schedule(graph, pes, heuristic, discipline)


def applicable(tasks: int, methods: Sequence[Method]) -> list[Method]:
    """The methods for this number of tasks; at least the first."""
    found = [m for m in methods if tasks <= LISTED or m not in LISTS]
    return found or list(methods[:1])


def makespan(graph: TaskGraph, pes: int, method: Method) -> int:
    """The makespan of a graph on `pes` processing elements by a method."""
    if method is Method.BASELINE:
        return nonstreaming_makespan(graph, pes)
    return streaming(graph, pes, method).makespan


@dataclass(frozen=True)
class _Prepared:
    """A combination's graph, and its costs that do not depend on the processing elements."""

    graph: TaskGraph
    io: int
    stored: int
    streamed: int
    critical_path: int
    streaming_depth: int


class Evaluator:
    """Schedules combinations: an expansion for each group of operators.

    stages: the operators of each group. found: the points by combination and number of elements.
    made: how many were scheduled here, rather than read from the store. methods: the allowed
    methods; quick: the fast ones among them. total: the expected number of points.
    """

    def __init__(
        self,
        net: OperatorNetwork,
        stages: Sequence[Sequence[str]],
        volume: Volume,
        methods: Sequence[Method],
        store: ResultStore,
        total: int,
    ) -> None:
        self.net: Final = net
        self.stages: Final = stages
        self.volume: Final = volume
        self.methods: Final = methods
        quick = [m for m in methods if m not in LISTS]
        self.quick: Final[Sequence[Method]] = quick or methods
        self.found: Final[dict[tuple[Choice, int], ExploredPoint]] = {}
        self.made = 0
        self.total: Final = total
        self._store: Final = store
        self._least: dict[int, int] = {}
        self._graphs: OrderedDict[Choice, _Prepared] = OrderedDict()

    def point(
        self, choice: Choice, pes: int, methods: Sequence[Method]
    ) -> ExploredPoint:
        """The shortest schedule by these methods and those tried before; the first among equals.

        A list schedule is made only if it could be the shortest known one for this number of
        elements: its lower bounds are the longest single task, and the total work divided by the
        elements.
        """
        key = choice, pes
        known = self.found.get(key) or self._store.known.get(key)
        if known is None or self._missing(known, methods):
            known = self._schedule(choice, pes, methods, known)
        if key not in self.found:
            events.emit("schedule", name=" ".join(choice), pes=pes, total=self.total)
        self.found[key] = known
        self._least[pes] = min(known.makespan, self._least.get(pes, known.makespan))
        return known

    def _missing(self, known: ExploredPoint, methods: Sequence[Method]) -> list[Method]:
        return [m for m in applicable(known.tasks, methods) if m not in known.tried]

    def graph(self, choice: Choice) -> TaskGraph:
        """The task graph of a combination."""
        return self._prepared(choice).graph

    def _schedule(
        self,
        choice: Choice,
        pes: int,
        methods: Sequence[Method],
        known: ExploredPoint | None,
    ) -> ExploredPoint:
        of = self._prepared(choice)
        graph = of.graph
        left: Sequence[Method]
        if known is None:
            self.made += 1
            left = applicable(graph.tasks, methods)
        else:
            left = self._missing(known, methods)
        floor = max(-(-graph.total_work // pes), *graph.work)
        if floor >= self._least.get(pes, floor + 1):
            others: list[Method] = [m for m in left if m not in LISTS]
            left = others if others or known else left[:1]
        best = known
        for method in left:
            found = self._point(of, choice, pes, method)
            if best is None or found.makespan < best.makespan:
                best = found
        assert best is not None
        before = () if known is None else known.tried
        best = replace(best, tried=(*before, *map(str, left)))
        if left:
            self._store.add(best)
        return best

    def _point(
        self, of: _Prepared, choice: Choice, pes: int, method: Method
    ) -> ExploredPoint:
        if method is Method.BASELINE:
            cycles = nonstreaming_makespan(of.graph, pes)
            between = of.streamed
        else:
            made = streaming(of.graph, pes, method)
            cycles, between = made.makespan, made.fifo_space
        speedup = of.graph.total_work / max(1, cycles)
        return ExploredPoint(
            choice,
            pes,
            str(method),
            (),
            cycles,
            of.io,
            of.stored + between,
            of.graph.tasks,
            speedup,
            speedup / pes,
            cycles / max(1, of.critical_path),
            cycles / max(1, of.streaming_depth),
        )

    def _prepared(self, choice: Choice) -> _Prepared:
        if choice not in self._graphs:
            if len(self._graphs) >= GRAPHS:
                self._graphs.popitem(last=False)
            chosen = {
                name: option
                for stages, option in zip(self.stages, choice, strict=True)
                for name in stages
            }
            found = program(self.net, chosen, self.volume)
            graph = found.graph
            self._graphs[choice] = _Prepared(
                graph,
                found.io,
                _stored(graph),
                _streamed(graph),
                critical_path(graph),
                streaming_depth(graph),
            )
        self._graphs.move_to_end(choice)
        return self._graphs[choice]


def _stored(graph: TaskGraph) -> int:
    """Elements of all tensors that go through buffers, each counted once."""
    sizes: dict[str, int] = {}
    for e in graph.edges:
        node = graph.nodes[e.target]
        if node.role is Role.BUFFER:
            sizes[node.origin] = max(sizes.get(node.origin, 0), e.array)
    return sum(sizes.values())


def _streamed(graph: TaskGraph) -> int:
    """Elements that tasks stream to other tasks, each counted once."""
    sizes: dict[int, int] = {}
    for e in graph.edges:
        ends = graph.nodes[e.source], graph.nodes[e.target]
        if all(node.role is Role.COMPUTE for node in ends):
            sizes[e.source] = e.part * ends[0].count
    return sum(sizes.values())
