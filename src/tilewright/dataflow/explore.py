"""The best expansion of each operator for N processing elements: exhaustive, or by a search.

Operators whose Computations are equal up to names form a group and share their expansion. Up to
`limit` evaluations every combination is scheduled, and the best is exact. Beyond that each number
of processing elements is searched (`search`), and the result includes its maximum distance from the
optimum: `bound` holds for every combination.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from enum import StrEnum
from itertools import product
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.compute.canonical import canonical
from tilewright.dataflow.baseline import UnstreamedSchedule, nonstreaming
from tilewright.dataflow.bound import Bounds
from tilewright.dataflow.evaluate import (
    Evaluator,
    Method,
    applicable,
    makespan,
    streaming,
)
from tilewright.dataflow.expand import PLAIN
from tilewright.dataflow.graph import TaskGraph, Volume, named
from tilewright.dataflow.lower import OperatorNetwork
from tilewright.dataflow.operators import OPERATOR
from tilewright.dataflow.results import Choice, ExploredPoint, ResultStore
from tilewright.dataflow.schedule import TaskSchedule
from tilewright.dataflow.search import search
from tilewright.plan.nodes import FusionGroup
from tilewright.search import relative_gap

LIMIT: Final = 2000  # the most evaluations made without a search
SECONDS: Final = 45.0  # time limit of a search
NAMED: Final = 6  # maximum number of groups that a label lists individually


class Grain(StrEnum):
    """The default granularity of a task.

    any: the best expansion of the operator. operator: the whole operator. loop: an index of its
    outermost parallel loop. expanded: the first expansion of its family; for products and
    convolutions the best of the classical ones.
    """

    ANY = "any"
    OPERATOR = "operator"
    LOOP = "loop"
    EXPANDED = "expanded"


@dataclass(frozen=True)
class OperatorGroup:
    """Operators that are equal up to names, and the expansions available to all of them."""

    stages: tuple[str, ...]
    family: str
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its first operator, and how many more there are."""
        return self.stages[0] + (
            f"(+{len(self.stages) - 1})" if len(self.stages) > 1 else ""
        )


@dataclass(frozen=True)
class Exploration:
    """All evaluated points. exact: whether these are all combinations.

    bounds: for each number of elements, a lower bound on the cycles of every combination.
    """

    network: str
    volume: Volume
    groups: Sequence[OperatorGroup]
    points: Sequence[ExploredPoint]
    exact: bool
    bounds: Mapping[int, int]
    evaluator: Evaluator = field(repr=False, compare=False)

    def best(self, pes: int) -> ExploredPoint:
        """The combination with the least makespan on `pes` elements, then the least I/O.

        Raises InputError for a number that was not explored.
        """
        if pes not in self.bounds:
            raise InputError(
                f"{pes!r} processing elements were not explored",
                where=self.network,
                hint=f"explored: {', '.join(map(str, self.bounds))}",
            )
        return min((p for p in self.points if p.pes == pes), key=lambda p: p.costs)

    def gap(self, pes: int) -> float:
        """How much longer the best found may be than the optimum, relative to the latter; 0 if
        exact."""
        if self.exact:
            return 0.0
        return relative_gap(self.best(pes).makespan, self.bounds[pes])

    def graph(self, point: ExploredPoint) -> TaskGraph:
        """The task graph of a point's combination."""
        return self.evaluator.graph(point.choice)

    def schedule(self, point: ExploredPoint) -> TaskSchedule | UnstreamedSchedule:
        """The schedule that a point measures."""
        graph = self.graph(point)
        method = Method(point.method)
        if method is Method.BASELINE:
            return nonstreaming(graph, point.pes)
        return streaming(graph, point.pes, method)

    def compared(self, point: ExploredPoint) -> dict[Method, int]:
        """The makespans of a point's combination by all methods, explored or not."""
        graph = self.graph(point)
        methods = applicable(graph.tasks, tuple(Method))
        return {method: makespan(graph, point.pes, method) for method in methods}

    def label(self, choice: Choice) -> str:
        """The choices of the groups that have several options: `conv1=mv conv2=op`.

        With many groups, only those with special schemes are listed, and the others counted.
        """
        groups = zip(self.groups, choice, strict=True)
        chosen = [(g, name) for g, name in groups if len(g.options) > 1]
        if len(chosen) < 2:
            return chosen[0][1] if chosen else "the only one"
        plain: set[str] = set()
        if len(chosen) > NAMED:
            plain = {*PLAIN, OPERATOR}
        named = [
            f"{g.name}={name}" for g, name in chosen if not plain.issuperset(g.options)
        ]
        others = Counter(name for g, name in chosen if plain.issuperset(g.options))
        counted = ", ".join(f"{count} {name}" for name, count in others.most_common())
        return " ".join([*named, f"and {counted}"] if others else named)

    def front(self) -> list[ExploredPoint]:
        """The Pareto front in makespan, I/O, buffer space and elements (the first among equals)."""
        kept: list[ExploredPoint] = []
        for p in sorted(self.points, key=lambda p: p.costs):
            if not any(
                all(a <= b for a, b in zip(q.costs, p.costs, strict=True)) for q in kept
            ):
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
            "best": {str(pes): self._best_row(pes) for pes in self.bounds},
            "points": [self._row(p) for p in self.points],
            "front": [self._row(p) for p in self.front()],
        }

    def _best_row(self, pes: int) -> dict[str, Any]:
        point = self.best(pes)
        made = {str(method): cycles for method, cycles in self.compared(point).items()}
        return {**self._row(point), **made}

    def _row(self, point: ExploredPoint) -> dict[str, Any]:
        return {**asdict(point), "label": self.label(point.choice)}


def groups_of(
    net: OperatorNetwork,
    wanted: Mapping[str, Sequence[str]],
    grain: Grain = Grain.ANY,
) -> list[OperatorGroup]:
    """The groups of a network with the expansions to try.

    wanted: the expansions for a family or an operator's name (default: according to `grain`).
    Raises InputError for an unknown name.
    """
    found: dict[str, tuple[list[str], str, tuple[str, ...]]] = {}
    _check(net, wanted)
    for stage in net.stages:
        family = net.families[stage.name]
        known = net.choices.get(stage.name, ("whole",))
        names = wanted.get(stage.name, wanted.get(family))
        tried = dict.fromkeys(names or _usual(family, known, grain))
        options = tuple(name for name in tried if name in known)
        if not options:
            raise InputError(
                f"none of {', '.join(names or ())} expands {stage.name}, a {family}",
                where=net.name,
                hint=f"it has: {', '.join(known)}",
            )
        if stage.name in wanted or stage.kernel:
            key = stage.name
        else:
            key = _same(stage)
        found.setdefault(key, ([], family, options))[0].append(stage.name)
    return [
        OperatorGroup(tuple(stages), family, options)
        for stages, family, options in found.values()
    ]


def _usual(family: str, known: Sequence[str], grain: Grain) -> Sequence[str]:
    if grain is Grain.ANY:
        return known
    if grain is not Grain.EXPANDED:
        return next((n,) for n in (grain, "whole") if n in known)
    classical = ("lmv", "mv", "op")
    if family in ("conv", "matmul"):
        return classical
    return known[:1]


def _same(stage: FusionGroup) -> str:
    return canonical(stage.computations, (*stage.reads, *stage.writes))


def _check(net: OperatorNetwork, wanted: Mapping[str, Sequence[str]]) -> None:
    for name, options in wanted.items():
        concerned = [
            s.name for s in net.stages if name in (s.name, net.families[s.name])
        ]
        if not concerned:
            raise InputError(
                f"expansions are given for {name}, which is not in the network",
                where=net.name,
                hint=f"families: {', '.join(sorted(set(net.families.values())))}; "
                f"operators: {', '.join(s.name for s in net.stages[:12])}",
            )
        known = dict.fromkeys(
            o for s in concerned for o in net.choices.get(s, ("whole",))
        )
        unknown = [option for option in options if option not in known]
        if unknown:
            raise InputError(
                f"no expansion {unknown[0]!r} of {name}",
                where=net.name,
                hint=f"known: {', '.join(known)}",
            )


def explore(
    net: OperatorNetwork,
    pes: Sequence[int],
    wanted: Mapping[str, Sequence[str]] | None = None,
    *,
    volume: Volume | str = Volume.PART,
    grain: Grain | str = Grain.ANY,
    methods: Sequence[Method] = tuple(Method),
    limit: int = LIMIT,
    seconds: float = SECONDS,
    store: ResultStore | None = None,
) -> Exploration:
    """Schedule a network's combinations of expansions on each number of processing elements.

    wanted, grain: expansions to try for a family or an operator, see `groups_of`. methods: a
    combination counts with its shortest schedule by any of them. limit: maximum number of
    evaluations (a combination on a number of elements); seconds: time limit of a search, if not
    every combination is evaluated anyway. store: known results, to which new ones are added. Emits
    an event `schedule` for each evaluation. Raises InputError for no methods, missing or invalid
    numbers of elements, invalid limits, and as `groups_of`.
    """
    _expect_arguments(net.name, pes, methods, limit, seconds)
    counts = sorted(set(pes))
    groups = groups_of(net, wanted or {}, named(Grain, grain))
    reading = named(Volume, volume)
    known = store or ResultStore()
    known.open(_subject(net, groups, reading, methods))
    everything = math.prod(len(g.options) for g in groups) * len(counts)
    exact = everything <= limit
    stages = [g.stages for g in groups]
    evaluator = Evaluator(net, stages, reading, methods, known, min(everything, limit))
    if exact:
        for ways in (evaluator.quick, methods):
            for choice in product(*(g.options for g in groups)):
                for count in counts:
                    evaluator.point(choice, count, ways)
    else:
        options = [g.options for g in groups]
        search(evaluator, options, counts, limit, time.monotonic() + seconds)
    points = sorted(evaluator.found.values(), key=lambda p: (p.pes, p.costs))
    bounds = Bounds(
        net, {name: g.options for g in groups for name in g.stages}, reading
    )
    lowest = {count: bounds.makespan(count) for count in counts}
    return Exploration(
        network=net.name,
        volume=reading,
        groups=groups,
        points=points,
        exact=exact,
        bounds=lowest,
        evaluator=evaluator,
    )


def _expect_arguments(
    where: str,
    pes: Sequence[int],
    methods: Sequence[Method],
    limit: int,
    seconds: float,
) -> None:
    """Raise InputError for invalid arguments of `explore`."""
    if not pes or any(whole(n, 1) is None for n in pes):
        raise InputError(
            f"processing elements {list(pes)}",
            where=where,
            hint="give integers of at least 1",
        )
    if whole(limit, 1) is None or not seconds >= 0:
        raise InputError(
            f"a limit of {limit!r} evaluations and {seconds!r} seconds",
            where=where,
            hint="give an integer of at least 1, and at least 0 seconds",
        )
    if not methods:
        raise InputError(
            "no scheduling method",
            where=where,
            hint=f"name some of: {', '.join(Method)}",
        )


def _subject(
    net: OperatorNetwork,
    groups: Sequence[OperatorGroup],
    reading: Volume,
    methods: Sequence[Method],
) -> dict[str, Any]:
    """The identity of comparable results: the operators, their groups, and the methods."""
    text = "\n".join(_same(s) if s.computations else s.name for s in net.stages)
    return {
        "network": net.name,
        "operators": hashlib.sha256(text.encode()).hexdigest(),
        "groups": [list(g.stages) for g in groups],
        "volume": str(reading),
        "methods": [str(method) for method in methods],
    }
