"""Every method with one signature, on a grid: for the tests of what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Any, Protocol

from tests.search.spaces import Grid, Point
from tilewright.search import (
    MOVING,
    Breeding,
    Result,
    SearchLimits,
    anneal,
    anneal_chains,
    beam,
    best_first,
    by_bandit,
    descend,
    each,
    evolve,
    exhaustive,
)

Cost = Callable[[Point], float]


class Method(Protocol):
    def __call__(
        self,
        grid: Grid,
        starts: Sequence[Point],
        cost: Cost,
        limits: SearchLimits,
        lower: float = -inf,
    ) -> Result[Any, Any]: ...


def _moves(grid: Grid) -> list[Callable[[Point], Point]]:
    def move(axis: int, value: int) -> Callable[[Point], Point]:
        return lambda point: (*point[:axis], value, *point[axis + 1 :])

    return [move(axis, v) for axis, side in enumerate(grid.sides) for v in range(side)]


class GridMoves:
    """A grid as techniques see it."""

    def __init__(self, grid: Grid) -> None:
        self.neighbor = grid.change
        self.cross = grid.cross
        self._sides = grid.sides

    def sample(self, random: Random) -> Point:
        return tuple(random.randrange(side) for side in self._sides)


METHODS: dict[str, Method] = {
    "exhaustive": lambda grid, starts, cost, limits, lower=-inf: exhaustive(
        [*starts, *grid.points], cost, limits=limits, lower=lower
    ),
    "beam": lambda grid, starts, cost, limits, lower=-inf: beam(
        starts[0], grid.neighbors, cost, width=3, depth=6, limits=limits, lower=lower
    ),
    "best_first": lambda grid, starts, cost, limits, lower=-inf: best_first(
        starts, grid.neighbors, cost, patience=5, limits=limits, lower=lower
    ),
    "descend": lambda grid, starts, cost, limits, lower=-inf: descend(
        starts, _moves(grid), cost, limits=limits, lower=lower
    ),
    "anneal": lambda grid, starts, cost, limits, lower=-inf: anneal(
        starts[0],
        grid.change,
        cost,
        hot=9.0,
        cold=0.5,
        steps=60,
        limits=limits,
        lower=lower,
    ),
    "evolve": lambda grid, starts, cost, limits, lower=-inf: evolve(
        starts,
        Breeding(grid.change, grid.cross),
        each(cost),
        size=6,
        generations=8,
        limits=limits,
        lower=lower,
    ),
    "anneal_chains": lambda grid, starts, cost, limits, lower=-inf: anneal_chains(
        starts,
        grid.change,
        each(cost),
        hot=9.0,
        steps=20,
        limits=limits,
        lower=lower,
    ),
    "bandit": lambda grid, starts, cost, limits, lower=-inf: by_bandit(
        starts,
        [technique(GridMoves(grid)) for technique in MOVING.values()],
        cost,
        steps=40,
        limits=limits,
        lower=lower,
    ),
}
SEVERAL_STARTS = (
    "exhaustive",
    "best_first",
    "descend",
    "evolve",
    "anneal_chains",
    "bandit",
)
