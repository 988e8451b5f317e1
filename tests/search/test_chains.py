"""Many walks: costed together, each as annealing walks alone; they persist and resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.spaces import Grid, Point
from tilewright.base.errors import InputError
from tilewright.search import SearchLimits, StopReason, anneal_chains, each

grids = st.builds(
    Grid, st.tuples(st.integers(1, 4), st.integers(1, 5)), st.integers(0, 999)
)


@given(grid=grids)
def test_walks_find_the_optimum_of_a_small_space(grid: Grid) -> None:
    found = anneal_chains(
        grid.points[:3], grid.change, each(grid.cost), hot=40, steps=300
    )
    assert found.cost == grid.least
    assert found.evaluations <= len(grid.points)  # each once


def test_a_step_of_all_walks_is_one_batch() -> None:
    batches: list[int] = []

    def costs(states: Sequence[int]) -> list[float]:
        batches.append(len(states))
        return [float(-s) for s in states]

    anneal_chains(range(0, 500, 100), lambda n, _: n + 1, costs, steps=4)
    assert batches == [5] * 5


def test_a_walk_that_may_not_rise_keeps_its_place_and_others_go_on() -> None:
    found = anneal_chains(
        [0, -50],
        lambda n, _: n + 1,
        each(lambda n: float(abs(n))),
        hot=0,
        cold=0,
        steps=60,
    )
    assert found.checkpoint is not None
    assert [state for state, _ in found.checkpoint.states] == [0, 0]


def test_a_rise_is_accepted_as_often_as_the_temperature_says() -> None:
    chains, steps = 30, 100
    found = anneal_chains(
        range(0, chains * 1000, 1000),
        lambda n, _: n + 1,
        each(lambda n: float(n % 1000)),
        hot=1,
        cold=1,
        steps=steps,
    )
    assert found.checkpoint is not None
    risen = sum(cost for _, cost in found.checkpoint.states)
    chance, draws = exp(-1), chains * steps
    assert abs(risen - draws * chance) < 4 * (draws * chance * (1 - chance)) ** 0.5


def test_the_temperature_falls_evenly_to_nothing() -> None:
    found = anneal_chains(
        range(0, 200_000, 1000),
        lambda n, _: n + 1,
        each(lambda n: float(n % 1000)),
        hot=100,
        cold=0,
        steps=2,
    )
    assert found.checkpoint is not None
    risen = [cost for _, cost in found.checkpoint.states]
    # The first step is nearly always accepted, the second never.
    assert set(risen) == {0.0, 1.0} and sum(risen) > 180


def test_patience_ends_walks_that_find_nothing() -> None:
    found = anneal_chains(
        [0], lambda n, _: n + 1, each(float), steps=500, patience=7, hot=1e9
    )
    assert (found.stop, found.evaluations) == (StopReason.PATIENCE, 8)


def test_walks_go_on_from_where_they_stood_when_costs_change() -> None:
    def up(n: int, random: Random) -> int:
        return n + 1

    first = anneal_chains([0, 10], up, each(lambda n: -float(n)), steps=5)
    assert first.checkpoint is not None
    starts = [state for state, _ in first.checkpoint.states]
    assert starts == [5, 15]
    second = anneal_chains(starts, up, each(lambda n: -2.0 * n), steps=5)
    assert second.state == 20


def test_a_walk_leaves_what_is_not_feasible() -> None:
    found = anneal_chains(
        [0],
        lambda n, random: n + random.choice((-1, 1)),
        each(lambda n: inf if n < 5 else float(n)),
        steps=400,
        seed=1,
    )
    assert found.cost == 5


@pytest.mark.parametrize("stop", [1, 4, 9, 20, 41])
def test_interrupted_walks_end_as_those_that_were_not(stop: int) -> None:
    grid = Grid((7, 7, 7), seed=4)
    starts = [(0, 0, 0), (3, 3, 3), (6, 1, 2)]

    def walk(**more: Any) -> Any:
        return anneal_chains(
            starts, grid.change, each(grid.cost), hot=9, steps=40, **more
        )

    whole = walk()
    part = walk(limits=SearchLimits(evaluations=stop))
    assert part.stop is StopReason.EVALUATIONS and part.evaluations == stop
    again = walk(resume=part.checkpoint)
    assert replace(again, evaluations=0, seconds=0) == replace(
        whole, evaluations=0, seconds=0
    )


def test_seeds_differ() -> None:
    grid = Grid((50, 50), seed=4)
    ends: set[tuple[Point, ...]] = set()
    for seed in range(4):
        found = anneal_chains(
            [(0, 0), (9, 9)], grid.change, each(grid.cost), hot=9, steps=9, seed=seed
        )
        assert found.checkpoint is not None
        ends.add(tuple(state for state, _ in found.checkpoint.states))
    assert len(ends) == 4


@pytest.mark.parametrize(("hot", "cold"), [(1.0, 2.0), (inf, 1.0), (1.0, -0.5)])
def test_temperatures_that_rise_are_refused(hot: float, cold: float) -> None:
    with pytest.raises(InputError, match="give 0 <= cold <= hot"):
        anneal_chains([0], lambda n, _: n, each(float), hot=hot, cold=cold)
