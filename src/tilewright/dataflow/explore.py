"""Which expansion of each operator suits how many processing elements: all of them, or a search.

Operators whose Computations are equal up to names are one group and share their expansion. Up to
`limit` evaluations every combination is scheduled, and the best is exact. Beyond it each number of
processing elements is searched by descent, group by group from the best uniform combination, and
the result says how far it can be from the best: `bound` holds for every combination.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import product
from typing import Any, Final

from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.compute.canonical import canonical
from tilewright.dataflow.baseline import nonstreaming_makespan
from tilewright.dataflow.blocks import Heuristic
from tilewright.dataflow.bound import Bounds
from tilewright.dataflow.evaluate import Evaluator
from tilewright.dataflow.graph import TaskGraph, Volume, named
from tilewright.dataflow.lower import Network
from tilewright.dataflow.results import Choice, Point, Store
from tilewright.dataflow.schedule import Schedule, schedule
from tilewright.graph.stages import Stage

LIMIT: Final = 2000  # evaluations that are made without a search


class Grain(StrEnum):
    """What a task is where nothing else is wanted: a whole operator, an index of its outermost
    parallel loop, or what the expansions of its family make of it."""

    OPERATOR = "operator"
    LOOP = "loop"
    EXPANDED = "expanded"


@dataclass(frozen=True)
class Group:
    """Operators that are equal up to names, and the expansions to choose from for all of them."""

    stages: tuple[str, ...]
    family: str
    options: tuple[str, ...]


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
    evaluator: Evaluator = field(repr=False, compare=False)

    def best(self, pes: int) -> Point:
        """The combination of the least makespan on `pes` elements; of equals the least I/O."""
        return min((p for p in self.points if p.pes == pes), key=lambda p: p.costs)

    def gap(self, pes: int) -> float:
        """How much longer the best found may be than the best there is, as a part of the latter; 0
        where it is exact."""
        return 0.0 if self.exact else self.best(pes).makespan / self.bounds[pes] - 1

    def graph(self, point: Point) -> TaskGraph:
        """The task graph of a point's combination."""
        return self.evaluator.graph(point.choice)

    def schedule(self, point: Point) -> Schedule:
        """The schedule that a point measures."""
        return schedule(self.graph(point), point.pes, point.heuristic)

    def compared(self, point: Point) -> dict[str, int]:
        """The makespans of a point's combination by each heuristic, and without streams."""
        graph = self.graph(point)
        found = {str(h): schedule(graph, point.pes, h).makespan for h in Heuristic}
        return {**found, "baseline": nonstreaming_makespan(graph, point.pes)}

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


def groups_of(
    net: Network, wanted: Mapping[str, Sequence[str]], grain: Grain = Grain.EXPANDED
) -> list[Group]:
    """The groups of a network with the expansions to try.

    wanted: for a family or a Stage's name the expansions (default: what `grain` says; expanded, the
    first alone, but for products and convolutions all classical ones). Raises InputError for a name
    nothing has.
    """
    found: dict[str, tuple[list[str], str, tuple[str, ...]]] = {}
    _check(net, wanted)
    for stage in net.stages:
        family = net.families[stage.name]
        known = net.choices.get(stage.name, ("whole",))
        names = wanted.get(stage.name, wanted.get(family))
        options = tuple(n for n in (names or _usual(family, known, grain)) if n in known)
        if not options:
            raise InputError(
                f"none of {', '.join(names or ())} expands {stage.name}, a {family}",
                where=net.name,
                hint=f"it has: {', '.join(known)}",
            )
        key = stage.name if stage.name in wanted or stage.kernel else _same(stage)
        found.setdefault(key, ([], family, options))[0].append(stage.name)
    return [Group(tuple(stages), family, options) for stages, family, options in found.values()]


def _usual(family: str, known: Sequence[str], grain: Grain) -> Sequence[str]:
    if grain is not Grain.EXPANDED:
        return next((n,) for n in (grain, "whole") if n in known)
    classical = ("lmv", "mv", "op")
    return classical if family in ("conv", "matmul") else known[:1]


def _same(stage: Stage) -> str:
    return canonical(stage.computations, (*stage.reads, *stage.writes))


def _check(net: Network, wanted: Mapping[str, Sequence[str]]) -> None:
    for name, options in wanted.items():
        concerned = [s.name for s in net.stages if name in (s.name, net.families[s.name])]
        if not concerned:
            raise InputError(
                f"expansions are given for {name}, which the network does not have",
                where=net.name,
                hint=f"families: {', '.join(sorted(set(net.families.values())))}; "
                f"operators: {', '.join(s.name for s in net.stages[:12])}",
            )
        known = dict.fromkeys(o for s in concerned for o in net.choices.get(s, ("whole",)))
        unknown = [option for option in options if option not in known]
        if unknown:
            raise InputError(
                f"no expansion {unknown[0]!r} of {name}",
                where=net.name,
                hint=f"known: {', '.join(known)}",
            )


def explore(
    net: Network,
    pes: Sequence[int],
    wanted: Mapping[str, Sequence[str]] | None = None,
    *,
    volume: Volume | str = Volume.PART,
    grain: Grain | str = Grain.EXPANDED,
    heuristics: Sequence[Heuristic] = tuple(Heuristic),
    limit: int = LIMIT,
    seconds: float = math.inf,
    store: Store | None = None,
) -> Exploration:
    """Schedule a network's combinations of expansions on each number of processing elements.

    wanted, grain: expansions to try for a family or an operator, see `groups_of`. limit: how many
    evaluations (a combination on a number of elements) are made at most; seconds: after how long a
    search ends, where not every combination is evaluated anyhow. store: what is known from before,
    and gets what is found. Emits an event `schedule` for each evaluation. Raises InputError for no
    or ill numbers of elements, and as `groups_of`.
    """
    if not pes or any(whole(n, 1) is None for n in pes):
        raise InputError(
            f"processing elements {list(pes)}", where=net.name, hint="give whole numbers from 1"
        )
    counts = sorted(set(pes))
    groups = groups_of(net, wanted or {}, named(Grain, grain))
    reading = named(Volume, volume)
    known = store or Store()
    known.open(_subject(net, groups, reading, heuristics))
    everything = math.prod(len(g.options) for g in groups) * len(counts)
    exact = everything <= limit
    stages = [g.stages for g in groups]
    evaluator = Evaluator(net, stages, reading, heuristics, known, min(everything, limit))
    if exact:
        for choice in product(*(g.options for g in groups)):
            for count in counts:
                evaluator.point(choice, count)
    else:
        _search(evaluator, groups, counts, limit, time.monotonic() + seconds)
    points = sorted(evaluator.found.values(), key=lambda p: (p.pes, p.costs))
    bounds = Bounds(net, {name: g.options for g in groups for name in g.stages}, reading)
    lowest = {count: bounds.makespan(count) for count in counts}
    return Exploration(net.name, reading, groups, points, exact, lowest, evaluator)


def _subject(
    net: Network, groups: Sequence[Group], reading: Volume, heuristics: Sequence[Heuristic]
) -> dict[str, Any]:
    """What makes results comparable: the operators, how they are grouped, and how scheduled."""
    text = "\n".join(_same(s) if s.computations else s.name for s in net.stages)
    return {
        "network": net.name,
        "operators": hashlib.sha256(text.encode()).hexdigest(),
        "groups": [list(g.stages) for g in groups],
        "volume": str(reading),
        "heuristics": [str(h) for h in heuristics],
    }


def _search(
    evaluator: Evaluator, groups: Sequence[Group], counts: Sequence[int], limit: int, end: float
) -> None:
    """Descend on each number of elements, with an equal share of what is left of both limits.

    One evaluation is made on each, however short the time.
    """
    for n, count in enumerate(counts):
        shares = len(counts) - n
        now = time.monotonic()
        budget = max(1, (limit - evaluator.made) // shares)
        _descend(evaluator, groups, count, budget, now + (end - now) / shares)


def _descend(
    evaluator: Evaluator, groups: Sequence[Group], pes: int, budget: int, end: float
) -> None:
    """From the best uniform combination, change one group at a time while it gets better."""
    stop = evaluator.made + budget

    def spent() -> bool:
        return evaluator.made >= stop or time.monotonic() >= end

    first, *others = _uniform(groups)
    best = evaluator.point(first, pes)
    for choice in others:
        if spent():
            return
        best = min(best, evaluator.point(choice, pes), key=_order)
    improved = True
    while improved:
        improved = False
        for n, group in enumerate(groups):
            for name in group.options:
                choice = (*best.choice[:n], name, *best.choice[n + 1 :])
                if spent():
                    return
                found = evaluator.point(choice, pes)
                if _order(found) < _order(best):
                    best, improved = found, True


def _order(p: Point) -> tuple[int, ...]:
    return p.costs


def _uniform(groups: Sequence[Group]) -> Iterator[Choice]:
    """The combinations that use one scheme wherever it exists, the first option elsewhere."""
    names = dict.fromkeys(n for g in groups for n in g.options)
    seen = {tuple(n if n in g.options else g.options[0] for g in groups): None for n in names}
    yield from seen
