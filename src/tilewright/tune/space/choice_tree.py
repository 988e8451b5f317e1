"""The choices that a sketch was seen to ask for: runs of it are remembered, not repeated.

What a sketch asks depends on what it was answered, so its parameters are a tree that only running
finds. A run really makes the schedule, which takes milliseconds; where all answers of a path were
given before, its end is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.schedule.space import Choices, Point, Sketch
from tilewright.tune.space.closeness import nearest


@dataclass(slots=True, eq=False)
class Met:
    """A question of a sketch where the earlier ones were answered in one way.

    behind: by the place of the answer, what follows; None where that is not known.
    """

    name: str
    candidates: tuple[Any, ...]
    default: int
    behind: list[Met | End | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.behind = [None] * len(self.candidates)


@dataclass(slots=True, eq=False)
class End:
    """Where a sketch is through. refused: why a primitive refused; None for a schedule."""

    refused: str | None = None


Choose = Callable[[Met], int]  # the place of an answer


@dataclass(frozen=True, slots=True)
class Walk:
    """A way through the tree. point: the schedule, where a run made it just now."""

    path: tuple[tuple[Met, int], ...]
    end: End
    point: Point | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The answers by name."""
        return {met.name: met.candidates[place] for met, place in self.path}

    @property
    def branching(self) -> int:
        """The product of the numbers of answers: if drawn evenly, an estimate without bias of how
        many ways there are (Knuth, 1975)."""
        return prod([len(met.candidates) for met, _ in self.path])


class ChoiceTree:
    """What is known of one sketch's choices. runs: how often it was run."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.runs = 0
        self._root: Met | End | None = None

    def walk(self, choose: Choose) -> Walk:
        """The way that these answers take."""
        path: list[tuple[Met, int]] = []
        node = self._root
        while isinstance(node, Met):
            place = choose(node)
            path.append((node, place))
            node = node.behind[place]
        if node is not None:
            return Walk(tuple(path), node)
        return self._run(path, choose)

    def _run(self, path: list[tuple[Met, int]], choose: Choose) -> Walk:
        known = iter([met.candidates[place] for met, place in path])

        def pick(name: str, candidates: Sequence[Any], default: Any) -> Any:
            try:
                return next(known)
            except StopIteration:
                place = list(candidates).index(default)
                met = Met(name, tuple(candidates), place)
            self._put(path, met)
            path.append((met, choose(met)))
            return met.candidates[path[-1][1]]

        self.runs += 1
        choices = Choices(pick=pick)
        point = None
        try:
            schedule = self.sketch.run(choices)
        except ScheduleError as error:
            end = End(str(error))
        else:
            end = End()
            point = Point(schedule, tuple(choices.met), self.sketch.name)
        self._put(path, end)
        return Walk(tuple(path), end, point)

    def _put(self, path: Sequence[tuple[Met, int]], node: Met | End) -> None:
        """Note what follows the answers of a path."""
        if path:
            met, place = path[-1]
            met.behind[place] = node
        else:
            self._root = node

    def walks(self) -> Iterator[Walk]:
        """Every way, the first answers first; each costs a run where it is not known."""
        places: list[int] = []
        while True:
            walk = self.walk(_along(places))
            yield walk
            path = list(walk.path)
            while path:
                met, place = path.pop()
                if place + 1 < len(met.candidates):
                    places = [*(p for _, p in path), place + 1]
                    break
            else:
                return

    def count(self) -> int | None:
        """How many schedules there are; None where not all ways are known."""
        total = 0
        pending = [self._root]
        while pending:
            node = pending.pop()
            if node is None:
                return None
            if isinstance(node, Met):
                pending += node.behind
            else:
                total += node.refused is None
        return total


def _along(places: Sequence[int]) -> Choose:
    """These places, then the first ones."""
    left = iter(places)
    return lambda met: next(left, 0)


def by_default(met: Met) -> int:
    """What is good without tuning."""
    return met.default


def towards(wanted: Mapping[str, Any]) -> Choose:
    """The wanted answers, or the nearest; the default where none is near, or none is wanted."""

    def choose(met: Met) -> int:
        if met.name not in wanted:
            return met.default
        place = nearest(met.candidates, wanted[met.name])
        return met.default if place is None else place

    return choose
