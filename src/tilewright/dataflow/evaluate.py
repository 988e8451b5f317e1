"""The cost of a combination of expansions on N processing elements, cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tilewright.base import events
from tilewright.dataflow.blocks import Heuristic
from tilewright.dataflow.depth import critical_path, streaming_depth
from tilewright.dataflow.graph import Role, TaskGraph, Volume
from tilewright.dataflow.lower import Network, program
from tilewright.dataflow.results import Choice, Point, Store
from tilewright.dataflow.schedule import Schedule, schedule

GRAPHS: Final = 1000  # combinations whose task graphs are kept


@dataclass(frozen=True)
class _Prepared:
    """A combination's graph, and what of its costs does not depend on processing elements."""

    graph: TaskGraph
    io: int
    stored: int
    critical_path: int
    streaming_depth: int


class Evaluator:
    """Schedules combinations: an expansion for each group of operators.

    stages: the operators of each group. found: the points by combination and number of elements.
    made: how many were scheduled here, not read from the store. total: how many are expected.
    """

    def __init__(
        self,
        net: Network,
        stages: Sequence[Sequence[str]],
        volume: Volume,
        heuristics: Sequence[Heuristic],
        store: Store,
        total: int,
    ) -> None:
        self.net: Final = net
        self.stages: Final = stages
        self.volume: Final = volume
        self.heuristics: Final = heuristics
        self.found: Final[dict[tuple[Choice, int], Point]] = {}
        self.made = 0
        self.total: Final = total
        self._store: Final = store
        self._graphs: OrderedDict[Choice, _Prepared] = OrderedDict()

    def point(self, choice: Choice, pes: int) -> Point:
        """The better of the heuristics."""
        key = choice, pes
        if key not in self.found:
            known = self._store.known.get(key)
            self.found[key] = known or self._schedule(choice, pes)
            events.emit("schedule", name=" ".join(choice), pes=pes, total=self.total)
        return self.found[key]

    def graph(self, choice: Choice) -> TaskGraph:
        """The task graph of a combination."""
        return self._prepared(choice).graph

    def _schedule(self, choice: Choice, pes: int) -> Point:
        self.made += 1
        of = self._prepared(choice)
        best = min((schedule(of.graph, pes, h) for h in self.heuristics), key=_makespan)
        found = Point(
            choice,
            pes,
            str(best.heuristic),
            best.makespan,
            of.io,
            best.fifo_space + of.stored,
            of.graph.tasks,
            best.rounds,
            best.speedup,
            best.utilization,
            best.makespan / max(1, of.critical_path),
            best.makespan / max(1, of.streaming_depth),
        )
        self._store.add(found)
        return found

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
                critical_path(graph),
                streaming_depth(graph),
            )
        self._graphs.move_to_end(choice)
        return self._graphs[choice]


def _makespan(s: Schedule) -> int:
    return s.makespan


def _stored(graph: TaskGraph) -> int:
    """Elements of all tensors that go through buffers, each once."""
    sizes: dict[str, int] = {}
    for e in graph.edges:
        node = graph.nodes[e.target]
        if node.role is Role.BUFFER:
            sizes[node.origin] = max(sizes.get(node.origin, 0), e.array)
    return sum(sizes.values())
