"""Small spaces of which everything is known by enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from random import Random

Point = tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def drawn(seed: int, place: Point, low: int, high: int) -> int:
    """A number from `low` to `high`, always the same for a place."""
    return Random(f"{seed} {place}").randint(low, high)


@dataclass(frozen=True)
class Grid:
    """Points with coordinates below `sides`, and a cost for each, drawn with a seed."""

    sides: Point
    seed: int = 0
    low: int = -20
    high: int = 20

    @property
    def points(self) -> list[Point]:
        return list(product(*map(range, self.sides)))

    def cost(self, point: Point) -> float:
        return float(drawn(self.seed, point, self.low, self.high))

    @property
    def least(self) -> float:
        return min(map(self.cost, self.points))

    def neighbors(self, point: Point) -> Iterator[Point]:
        """One step up or down along each axis."""
        for axis, side in enumerate(self.sides):
            for step in (-1, 1):
                if 0 <= point[axis] + step < side:
                    yield (*point[:axis], point[axis] + step, *point[axis + 1 :])

    def change(self, point: Point, random: Random) -> Point:
        """Another value of one coordinate."""
        axis = random.randrange(len(point))
        return (*point[:axis], random.randrange(self.sides[axis]), *point[axis + 1 :])

    def cross(self, one: Point, other: Point, random: Random) -> Point:
        return tuple(random.choice(pair) for pair in zip(one, other, strict=True))


@dataclass(frozen=True)
class Chain:
    """Choices one after another; each costs by itself and with the choice before it.

    A state is a tuple of the first choices. `bound` takes the least of what is still to come.
    """

    length: int
    options: int
    seed: int = 0
    low: int = 0
    high: int = 9

    def _draw(self, *place: int) -> int:
        return drawn(self.seed, place, self.low, self.high)

    def part(self, state: Point) -> float:
        alone = sum(self._draw(n, choice) for n, choice in enumerate(state))
        return alone + sum(
            self._draw(n, *pair) for n, pair in enumerate(pairwise(state))
        )

    def expand(self, state: Point) -> list[Point] | None:
        if len(state) == self.length:
            return None
        return [(*state, n) for n in range(self.options)]

    def bound(self, state: Point) -> float:
        rest = range(len(state), self.length)
        alone = sum(min(self._draw(n, k) for k in range(self.options)) for n in rest)
        return self.part(state) + alone + self.low * (self.length - max(1, len(state)))

    @property
    def states(self) -> list[Point]:
        return list(product(range(self.options), repeat=self.length))
