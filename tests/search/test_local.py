"""Descent ends where no move helps; annealing accepts what it says, finds optima and resumes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.methods import _moves
from tests.search.spaces import Grid, Point
from tilewright.base.errors import InputError
from tilewright.search import SearchLimits, StopReason, anneal, descend

grids = st.builds(
    Grid, st.tuples(st.integers(1, 4), st.integers(1, 5)), st.integers(0, 999)
)


@given(grid=grids)
def test_no_single_move_improves_what_descent_finds(grid: Grid) -> None:
    moves = _moves(grid)
    found = descend(grid.points[:2], moves, grid.cost)
    assert found.stop is StopReason.FINISHED and found.bound == -inf
    assert all(grid.cost(move(found.state)) >= found.cost for move in moves)


def test_descent_takes_what_is_better_at_once() -> None:
    looked_at: list[int] = []

    def cost(n: int) -> float:
        looked_at.append(n)
        return abs(n - 4)

    found = descend([0], [lambda n: n + 1, lambda n: n + 2], cost)
    assert (found.state, looked_at) == (4, [0, 1, 3, 4, 6, 5, 6])


def test_descent_compares_tuples_from_the_left() -> None:
    found = descend([25, 12], [lambda n: n + 1], lambda n: (n // 10, -n))
    assert (found.state, found.cost) == (19, (1, -19))


@given(grid=grids)
def test_a_long_walk_finds_the_optimum_of_a_small_space(grid: Grid) -> None:
    found = anneal((0, 0), grid.change, grid.cost, hot=40.0, cold=1.0, steps=600)
    assert found.cost == grid.least
    assert found.evaluations <= len(grid.points)  # each once


def test_cooling_finds_minima_that_heat_and_cold_alone_miss() -> None:
    """Twenty spins, each pair of which is to be equal or not: descent is caught in what is nearly
    good, and heat does not settle."""
    spins = 20
    wanted = {
        (i, j): Random(f"{i} {j}").choice((-1, 1))
        for i in range(spins)
        for j in range(i)
    }

    def cost(state: Point) -> float:
        return sum(sign * state[i] * state[j] for (i, j), sign in wanted.items())

    def flip(state: Point, random: Random) -> Point:
        n = random.randrange(spins)
        return (*state[:n], -state[n], *state[n + 1 :])

    def mean(hot: float, cold: float) -> float:
        start = (1,) * spins
        runs = (
            anneal(start, flip, cost, hot=hot, cold=cold, steps=400, seed=seed)
            for seed in range(10)
        )
        return sum(run.cost for run in runs) / 10

    assert mean(8.0, 0.5) < mean(0.01, 0.01) - 2 < mean(1000.0, 1000.0) - 4


@pytest.mark.parametrize(("temperature", "rise"), [(1.0, 1.0), (2.0, 1.0), (0.5, 2.0)])
def test_a_rise_is_accepted_as_often_as_the_temperature_says(
    temperature: float, rise: float
) -> None:
    steps = 3000
    found = anneal(
        0,
        lambda n, _: n + 1,
        lambda n: rise * n,
        hot=temperature,
        cold=temperature,
        steps=steps,
    )
    assert found.checkpoint is not None
    ((reached, cost),) = found.checkpoint.states
    chance = exp(-rise / temperature)
    spread = (steps * chance * (1 - chance)) ** 0.5
    assert abs(reached - steps * chance) < 4 * spread and cost == rise * reached
    assert (found.state, found.cost) == (0, 0)


def test_the_temperature_falls_from_hot_to_cold() -> None:
    accepted = Counter[bool]()
    for seed in range(200):
        found = anneal(
            0, lambda n, _: n + 1, float, hot=50.0, cold=0.01, steps=2, seed=seed
        )
        assert found.checkpoint is not None
        ((reached, _),) = found.checkpoint.states
        accepted[reached == 1] += 1
    # The first step is nearly always accepted, the second never.
    assert accepted[True] > 180


def test_a_walk_leaves_what_is_not_feasible() -> None:
    found = anneal(
        0, lambda n, random: n + random.choice((-1, 1)), lambda n: inf if n < 5 else n, hot=1,
        cold=1, steps=400, seed=1,
    )  # fmt: skip
    assert found.cost == 5


@pytest.mark.parametrize("stop", [1, 2, 7, 20, 33])
def test_an_interrupted_walk_ends_as_one_that_was_not(stop: int) -> None:
    grid = Grid((7, 7, 7), seed=4)

    def walk(**more: object):  # type: ignore[no-untyped-def]
        start = (3, 3, 3)
        return anneal(start, grid.change, grid.cost, hot=9, cold=1, steps=90, **more)  # type: ignore[arg-type]

    whole = walk()
    part = walk(limits=SearchLimits(evaluations=stop))
    assert part.stop is StopReason.EVALUATIONS and part.evaluations == stop
    again = walk(resume=part.checkpoint)
    assert part.evaluations + again.evaluations == whole.evaluations
    assert replace(again, evaluations=0, seconds=0) == replace(
        whole, evaluations=0, seconds=0
    )
    done = walk(resume=whole.checkpoint)
    assert (done.evaluations, done.state) == (0, whole.state)


def test_seeds_differ() -> None:
    grid = Grid((50, 50), seed=4)
    limits = SearchLimits(evaluations=30)
    ends: set[Point] = set()
    for seed in range(5):
        found = anneal(
            (0, 0), grid.change, grid.cost, hot=9, cold=1, seed=seed, limits=limits
        )
        assert found.checkpoint is not None
        ends.add(found.checkpoint.states[0][0])
    assert len(ends) == 5


@pytest.mark.parametrize(
    ("hot", "cold"), [(1.0, 2.0), (1.0, 0.0), (inf, 1.0), (-1.0, -2.0)]
)
def test_temperatures_fall_and_are_above_zero(hot: float, cold: float) -> None:
    with pytest.raises(InputError, match="temperatures from"):
        anneal(0, lambda n, _: n, float, hot=hot, cold=cold)
    with pytest.raises(InputError, match="steps 0 must be at least 1"):
        anneal(0, lambda n, _: n, float, hot=2, cold=1, steps=0)
