"""Techniques over states encoded as vectors of numbers from 0 to 1, one axis per choice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from math import inf
from random import Random
from typing import Any, ClassVar, Final, Generic

from tilewright.base.dataclass import dataclass
from tilewright.search.result import S
from tilewright.search.techniques import POPULATION, Technique

Vector = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Box(Generic[S]):
    """A space of vectors of numbers from 0 to 1. axes: their length. at: maps one to a state."""

    axes: int
    at: Callable[[Vector], S]
    key: Callable[[S], Hashable] = field(default=lambda state: state)


class _Asking(Generic[S]):
    """Tracks the vectors of states whose costs are pending."""

    def __init__(self, box: Box[S]) -> None:
        self._box: Final = box
        self._asked: dict[Hashable, list[Vector]] = {}

    def _ask(self, vector: Vector) -> S:
        state = self._box.at(vector)
        self._asked.setdefault(self._box.key(state), []).append(vector)
        return state

    def _answered(self, state: S, own: bool) -> Vector | None:
        at = self._box.key(state)
        if not own or at not in self._asked:
            return None
        vectors = self._asked[at]
        if len(vectors) == 1:
            del self._asked[at]
        return vectors.pop(0)

    def _drawn(self, random: Random) -> Vector:
        return tuple(random.random() for _ in range(self._box.axes))


class PatternSearch(_Asking[S]):
    """A step up or down along each axis in turn; halved when none helps, and finally restarted.

    (Hooke and Jeeves, JACM 1961, without their pattern moves.)
    """

    name: ClassVar[str] = "pattern"
    first: ClassVar[float] = 0.25
    least: ClassVar[float] = 0.01

    def __init__(self, box: Box[S]) -> None:
        super().__init__(box)
        self._center: Vector | None = None
        self._restart()

    def _restart(self) -> None:
        self._center, self._cost = None, inf
        self._step = self.first
        self._turn = 0

    def ask(self, random: Random) -> S | None:
        """The next step; None while one is pending."""
        if self._asked:
            return None
        if self._center is None:
            return self._ask(self._drawn(random))
        axis, down = divmod(self._turn, 2)
        moved = list(self._center)
        moved[axis] = _clipped(moved[axis] + (-self._step if down else self._step))
        return self._ask(tuple(moved))

    def tell(self, state: S, cost: float, own: bool, random: Random) -> None:
        """Take the step if it helps."""
        vector = self._answered(state, own)
        if vector is None:
            return
        if self._center is None or cost < self._cost:
            self._center, self._cost, self._turn = vector, cost, 0
            return
        self._turn += 1
        if self._turn == 2 * self._box.axes:
            self._turn = 0
            self._step /= 2
        if self._step < self.least or cost == inf == self._cost:
            self._restart()


class Differential(_Asking[S]):
    """Differential evolution: a vector moved by the difference of two others, then crossed over."""

    name: ClassVar[str] = "differential"
    weight: ClassVar[float] = 0.7
    crossing: ClassVar[float] = 0.2

    def __init__(self, box: Box[S]) -> None:
        super().__init__(box)
        self._living: list[tuple[float, Vector]] = []
        self._places: dict[Vector, int] = {}
        self._turn = 0

    def ask(self, random: Random) -> S | None:
        """The next vector's rival."""
        if len(self._living) < POPULATION:
            return self._ask(self._drawn(random))
        place = self._turn % POPULATION
        self._turn += 1
        rival = self._rival(place, random)
        self._places[rival] = place
        return self._ask(rival)

    def tell(self, state: S, cost: float, own: bool, random: Random) -> None:
        """Keep the better of two rivals."""
        vector = self._answered(state, own)
        if vector is None:
            return
        place = self._places.pop(vector, None)
        if place is None:
            self._living.append((cost, vector))
        elif cost <= self._living[place][0]:
            self._living[place] = cost, vector

    def _rival(self, place: int, random: Random) -> Vector:
        others = [v for n, (_, v) in enumerate(self._living) if n != place]
        a, b, c = random.sample(others, 3)
        kept = self._living[place][1]
        sure = random.randrange(len(kept)) if kept else 0
        return tuple(
            _clipped(a[n] + self.weight * (b[n] - c[n]))
            if n == sure or random.random() < self.crossing
            else kept[n]
            for n in range(len(kept))
        )


class Torczon(_Asking[S]):
    """Multidirectional search: a simplex is reflected at its best corner, and expanded or shrunk.

    (Torczon, SIAM J. on Optimization 1991.) All corners of a step are proposed before any is
    evaluated.
    """

    name: ClassVar[str] = "torczon"
    reach: ClassVar[float] = 0.3  # distance from the first corner to the others
    least: ClassVar[float] = 0.01

    def __init__(self, box: Box[S]) -> None:
        super().__init__(box)
        self._simplex: list[tuple[float, Vector]] = []
        self._trial: list[tuple[float, Vector]] = []
        self._reflected: list[tuple[float, Vector]] = []
        self._stage = "start"
        self._wanted: list[Vector] = []

    def ask(self, random: Random) -> S | None:
        """The next corner; None while a step is pending."""
        if not self._wanted and not self._asked:
            self._wanted = self._next(random)
        return self._ask(self._wanted.pop()) if self._wanted else None

    def tell(self, state: S, cost: float, own: bool, random: Random) -> None:
        """Record one corner's cost."""
        vector = self._answered(state, own)
        if vector is not None:
            self._trial.append((cost, vector))

    def _next(self, random: Random) -> list[Vector]:
        """The corners of the next step, from the results of the last one."""
        trial, self._trial = sorted(self._trial), []
        ends = [*trial[:1], *self._simplex[:1]]
        better = len(ends) == 2 and ends[0][0] < ends[1][0]
        match self._stage:
            case "start":
                self._simplex = trial
            case "reflect" if better:
                self._reflected = trial
                return self._step("expand", 2.0)
            case "reflect":
                return self._step("shrink", -0.5)
            case "expand":
                moved = min(trial, self._reflected)
                self._simplex = sorted([self._simplex[0], *moved])
            case "shrink":
                self._simplex = sorted([self._simplex[0], *trial])
        if len(self._simplex) <= self._box.axes or self._size() < self.least:
            return self._fresh(random)
        return self._step("reflect", 1.0)

    def _fresh(self, random: Random) -> list[Vector]:
        self._stage, self._simplex = "start", []
        corner = self._drawn(random)
        corners = [corner]
        for n, number in enumerate(corner):
            away = number + self.reach if number < 0.5 else number - self.reach
            corners.append((*corner[:n], away, *corner[n + 1 :]))
        return corners

    def _step(self, stage: str, factor: float) -> list[Vector]:
        """The other corners, reflected at the best (factor > 0) or moved toward it (< 0)."""
        self._stage = stage
        best = self._simplex[0][1]
        return [_away(best, corner, factor) for _, corner in self._simplex[1:]]

    def _size(self) -> float:
        best = self._simplex[0][1]
        return max(_distance(best, corner) for _, corner in self._simplex)


def _away(best: Vector, corner: Sequence[float], factor: float) -> Vector:
    return tuple(
        _clipped(b + factor * (b - c)) for b, c in zip(best, corner, strict=True)
    )


def _distance(a: Vector, b: Vector) -> float:
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)


def _clipped(number: float) -> float:
    return min(1.0, max(0.0, number))


_ALL: Final = (PatternSearch, Differential, Torczon)
BOXED: Final[Mapping[str, Callable[[Box[Any]], Technique[Any]]]] = {
    made.name: made for made in _ALL
}
