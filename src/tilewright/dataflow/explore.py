"""Which expansion of each operator suits how many processing elements: all of them, or a search.

Operators whose Computations are equal up to names are one group and share their expansion. Up to
`limit` evaluations every combination is scheduled, and the best is exact. Beyond it each number of
processing elements is searched by descent, group by group from the default, and the result says how
far it can be from the best: a bound that holds for every combination.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Final

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.compute.canonical import canonical
from tilewright.dataflow.blocks import Heuristic
from tilewright.dataflow.graph import TaskGraph, Volume
from tilewright.dataflow.lower import Network, program
from tilewright.dataflow.program import Program, Task
from tilewright.dataflow.schedule import Schedule, schedule
from tilewright.graph.stages import Stage

LIMIT: Final = 2000  # evaluations that are made without a search

Choice = tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Operators that are equal up to names, and the expansions to choose from for all of them."""

    stages: tuple[str, ...]
    family: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One combination on one number of processing elements; cycles, elements.

    choice: an expansion for each group. buffers: elements that FIFOs and buffers hold.
    """

    choice: Choice
    pes: int
    heuristic: str
    makespan: int
    io: int
    buffers: int
    tasks: int
    blocks: int
    speedup: float
    utilisation: float
    slr: float
    sslr: float

    @property
    def costs(self) -> tuple[int, int, int, int]:
        """What is to be small."""
        return self.makespan, self.io, self.buffers, self.pes


@dataclass(frozen=True)
class Exploration:
    """All that was evaluated. exact: whether that was every combination.

    bounds: for each number of elements, cycles that no combination undercuts.
    """

    network: str
    volume: Volume
    groups: Sequence[Group]
    points: Sequence[Point]
    exact: bool
    bounds: Mapping[int, int]

    def best(self, pes: int) -> Point:
        """The combination of the least makespan on `pes` elements; of equals the least I/O."""
        return min((p for p in self.points if p.pes == pes), key=lambda p: p.costs)

    def gap(self, pes: int) -> float:
        """How much longer the best found may be than the best there is, as a part of the latter; 0
        where it is exact."""
        return 0.0 if self.exact else self.best(pes).makespan / self.bounds[pes] - 1

    def front(self) -> list[Point]:
        """The points that no other is at least as good as in makespan, I/O, buffer space and
        elements (of equal ones the first)."""
        kept: list[Point] = []
        for p in sorted(self.points, key=lambda p: p.costs):
            if not any(all(a <= b for a, b in zip(q.costs, p.costs, strict=True)) for q in kept):
                kept.append(p)
        return kept

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "network": self.network,
            "volume": str(self.volume),
            "exact": self.exact,
            "groups": [asdict(g) for g in self.groups],
            "bounds": {str(pes): bound for pes, bound in self.bounds.items()},
            "points": [asdict(p) for p in self.points],
            "front": [asdict(p) for p in self.front()],
        }


def groups_of(net: Network, wanted: Mapping[str, Sequence[str]]) -> list[Group]:
    """The groups of a network with the expansions to try.

    wanted: for a family or a Stage's name the expansions (default: the first alone, but for
    products and convolutions all classical ones). Raises InputError for a name nothing has.
    """
    found: dict[str, tuple[list[str], str, tuple[str, ...]]] = {}
    choices = net.choices()
    _check(net, wanted)
    for stage in net.stages:
        family = net.family(stage)
        known = choices.get(stage.name, ("whole",))
        names = wanted.get(stage.name, wanted.get(family))
        options = tuple(n for n in (names or _usual(family, known)) if n in known)
        if not options:
            raise InputError(
                f"none of {', '.join(names or ())} expands {stage.name}, a {family}",
                where=net.name,
                hint=f"it has: {', '.join(known)}",
            )
        key = stage.name if stage.name in wanted or stage.kernel else _same(stage)
        found.setdefault(key, ([], family, options))[0].append(stage.name)
    return [Group(tuple(stages), family, options) for stages, family, options in found.values()]


def _usual(family: str, known: Sequence[str]) -> Sequence[str]:
    classical = ("lmv", "mv", "op")
    return classical if family in ("conv", "matmul") else known[:1]


def _same(stage: Stage) -> str:
    return canonical(stage.computations, (*stage.reads, *stage.writes))


def _check(net: Network, wanted: Mapping[str, Sequence[str]]) -> None:
    families = {net.family(s) for s in net.stages}
    for name in wanted:
        if name not in families and name not in {s.name for s in net.stages}:
            raise InputError(
                f"expansions are given for {name}, which the network does not have",
                where=net.name,
                hint=f"families: {', '.join(sorted(families))}; "
                f"operators: {', '.join(s.name for s in net.stages[:12])}",
            )


@dataclass(eq=False)
class _Search:
    """Evaluates combinations, each once."""

    net: Network
    groups: Sequence[Group]
    volume: Volume
    heuristics: Sequence[Heuristic]
    known: dict[tuple[Choice, int], Point] = field(default_factory=dict)
    graphs: dict[Choice, tuple[Program, int]] = field(default_factory=dict)

    def point(self, choice: Choice, pes: int) -> Point:
        """The better of the heuristics."""
        if (choice, pes) not in self.known:
            found, held = self._program(choice)
            runs = [schedule(found.graph, pes, h) for h in self.heuristics]
            best = min(runs, key=lambda s: s.makespan)
            self.known[choice, pes] = _measured(choice, best, found.io, held)
            events.emit("schedule", name=" ".join(choice), pes=pes)
        return self.known[choice, pes]

    def _program(self, choice: Choice) -> tuple[Program, int]:
        if choice not in self.graphs:
            self.graphs.clear()
            chosen = {
                stage: name
                for group, name in zip(self.groups, choice, strict=True)
                for stage in group.stages
            }
            found = program(self.net, chosen, self.volume)
            self.graphs[choice] = found, _stored(found.graph)
        return self.graphs[choice]


def explore(
    net: Network,
    pes: Sequence[int],
    wanted: Mapping[str, Sequence[str]] | None = None,
    *,
    volume: Volume | str = Volume.PART,
    heuristics: Sequence[Heuristic] = tuple(Heuristic),
    limit: int = LIMIT,
) -> Exploration:
    """Schedule a network's combinations of expansions on each number of processing elements.

    wanted: expansions to try for a family or an operator, see `groups_of`. limit: how many
    evaluations (a combination on a number of elements) are made at most. Emits an event
    `schedule` for each. Raises InputError for no or ill numbers of elements, and as `groups_of`.
    """
    counts = sorted(set(pes))
    if not counts or counts[0] < 1:
        raise InputError(
            f"processing elements {list(pes)}", where=net.name, hint="give whole numbers from 1"
        )
    groups = groups_of(net, wanted or {})
    search = _Search(net, groups, Volume(volume), heuristics)
    combinations = math.prod(len(g.options) for g in groups)
    exact = combinations * len(counts) <= limit
    events.emit("explore", name=net.name, total=min(combinations * len(counts), limit))
    if exact:
        for choice in product(*(g.options for g in groups)):
            for count in counts:
                search.point(choice, count)
    else:
        for count in counts:
            _descend(search, count, limit // len(counts))
    points = sorted(search.known.values(), key=lambda p: (p.pes, p.costs))
    bounds = {count: _bound(net, groups, count, search.volume) for count in counts}
    return Exploration(net.name, search.volume, groups, points, exact, bounds)


def _descend(search: _Search, pes: int, budget: int) -> None:
    """From the best uniform combination, change one group at a time while it gets better."""
    left = iter(range(budget))
    starts = list(_uniform(search.groups))
    best = min((search.point(c, pes) for c, _ in zip(starts, left, strict=False)), key=_order)
    improved = True
    while improved:
        improved = False
        for choice in _neighbours(search.groups, best.choice):
            if next(left, None) is None:
                return
            found = search.point(choice, pes)
            if _order(found) < _order(best):
                best, improved = found, True
                break


def _order(p: Point) -> tuple[int, ...]:
    return p.costs


def _uniform(groups: Sequence[Group]) -> Iterator[Choice]:
    """The combinations that use one scheme wherever it exists, the first option elsewhere."""
    names = dict.fromkeys(n for g in groups for n in g.options)
    seen = {tuple(n if n in g.options else g.options[0] for g in groups): None for n in names}
    yield from seen


def _neighbours(groups: Sequence[Group], choice: Choice) -> Iterator[Choice]:
    for n, g in enumerate(groups):
        for name in g.options:
            if name != choice[n]:
                yield (*choice[:n], name, *choice[n + 1 :])


def _measured(choice: Choice, s: Schedule, io: int, held: int) -> Point:
    return Point(
        choice,
        s.pes,
        str(s.heuristic),
        s.makespan,
        io,
        s.fifo_space + held,
        s.graph.tasks,
        s.rounds,
        s.speedup,
        s.utilisation,
        s.slr,
        s.sslr,
    )


def _stored(graph: TaskGraph) -> int:
    """Elements of all tensors that go through buffers, each once."""
    sizes: dict[str, int] = {}
    for e in graph.edges:
        node = graph.nodes[e.target]
        if node.role == "buffer":
            sizes[node.origin] = max(sizes.get(node.origin, 0), e.array)
    return sum(sizes.values())


def _bound(net: Network, groups: Sequence[Group], pes: int, volume: Volume) -> int:
    """Cycles that every combination needs: the least work spread evenly, or the longest task of
    the operator whose longest task is shortest in no expansion."""
    stages = {s.name: s for s in net.stages}
    total, longest = 0, 0
    for group in groups:
        stage = stages[group.stages[0]]
        works = [_works(net, stage, option, volume) for option in group.options]
        total += len(group.stages) * min(map(sum, works))
        longest = max(longest, min(map(max, works)))
    return max(1, longest, -(-total // pes))


def _works(net: Network, stage: Stage, option: str, volume: Volume) -> list[int]:
    return [_work(t, volume) for t in net.tasks(stage, option)]


def _work(t: Task, volume: Volume) -> int:
    """The larger volume of a task; under the reading `array` that of the arrays it shares."""
    if volume is Volume.PART:
        return max(t.reads, t.writes)
    shared = [b.size for b in t.inputs] if t.joins else []
    return max(t.reads, *(b.size for b in t.outputs), *shared)
