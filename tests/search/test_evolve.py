"""Evolution: what it breeds, never twice, in batches; it finds optima and resumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.spaces import Grid, Point
from tilewright.base.errors import InputError
from tilewright.search import Breeding, SearchLimits, StopReason, each, evolve

grids = st.builds(Grid, st.tuples(*[st.integers(1, 4)] * 3), st.integers(0, 999))


@given(grid=grids)
def test_the_optimum_of_a_small_space_is_found(grid: Grid) -> None:
    found = evolve([(0, 0, 0)], Breeding(grid.change, grid.cross), each(grid.cost))
    assert found.cost == grid.least


def test_a_large_space_is_searched_better_than_by_chance() -> None:
    """Sixteen choices of 64, whose costs add up: 64**16 states, of which 2,000 are evaluated."""
    target = Grid((64,) * 16)

    def cost(point: Point) -> float:
        return sum(abs(n - 7 * axis % 64) for axis, n in enumerate(point))

    limits = SearchLimits(evaluations=2000)
    ends = [
        evolve(
            [(0,) * 16], breeding, each(cost), size=32, generations=500, limits=limits
        ).cost
        for breeding in (
            Breeding(target.change),
            Breeding(target.change, target.cross, 0.3),
        )
    ]
    draw = Random(0)
    chance = min(
        cost(tuple(draw.randrange(64) for _ in range(16))) for _ in range(2000)
    )
    assert max(ends) < 40 < 150 < chance


@given(grid=grids, size=st.integers(1, 9))
def test_no_state_is_evaluated_twice_and_batches_are_full_or_less(
    grid: Grid, size: int
) -> None:
    batches: list[Sequence[Point]] = []

    def costs(points: Sequence[Point]) -> list[float]:
        batches.append(points)
        return [grid.cost(p) for p in points]

    seeds = grid.points[:3]
    found = evolve(
        [*seeds, *seeds], Breeding(grid.change, grid.cross), costs, size=size
    )
    evaluated = [p for batch in batches for p in batch]
    assert len(evaluated) == len(set(evaluated)) == found.evaluations
    assert batches[0] == seeds and all(0 < len(batch) <= size for batch in batches[1:])
    assert found.checkpoint is not None
    kept = [cost for _, cost in found.checkpoint.states]
    assert kept == sorted(map(grid.cost, evaluated))[:size]


def test_parts_of_parents_are_crossed_as_often_as_asked() -> None:
    crossed: list[tuple[int, int]] = []
    mutated: list[int] = []

    def mutate(n: int, random: Random) -> int:
        mutated.append(n)
        return random.randrange(10**9)

    def cross(a: int, b: int, random: Random) -> int:
        crossed.append((a, b))
        return random.randrange(10**9)

    evolve(
        range(64), Breeding(mutate, cross, 0.25), each(float), size=64, generations=30
    )
    share = len(crossed) / (len(crossed) + len(mutated))
    assert 0.2 < share < 0.3


def test_cheaper_states_have_more_children() -> None:
    mothers: list[int] = []

    def mutate(n: int, random: Random) -> int:
        mothers.append(n)
        return n + 1000 * random.randrange(1, 10**6)

    evolve(range(10), Breeding(mutate), each(float), size=10, generations=200)
    ranks = [mothers.count(n) for n in range(10)]
    assert ranks[0] > 1.5 * ranks[5] > 3 * ranks[9] > 0


@pytest.mark.parametrize("generations", [1, 2, 5])
def test_generations_are_counted(generations: int) -> None:
    found = evolve(
        [0], Breeding(lambda n, _: n + 1), each(float), generations=generations
    )
    assert found.checkpoint is not None
    assert found.checkpoint.steps == generations == found.evaluations - 1


def test_a_search_ends_where_no_child_is_new() -> None:
    found = evolve(
        [0], Breeding(lambda n, _: min(n + 1, 5)), each(float), generations=1000
    )
    assert (found.stop, found.evaluations) == (StopReason.FINISHED, 6)
    assert found.checkpoint is not None and found.checkpoint.steps == 5


@pytest.mark.parametrize("stop", [3, 8, 9, 30, 47])
def test_an_interrupted_search_ends_as_one_that_was_not(stop: int) -> None:
    grid = Grid((9, 9, 9), seed=4)

    def search(**more: object):  # type: ignore[no-untyped-def]
        breeding = Breeding(grid.change, grid.cross)
        return evolve(
            [(0, 0, 0), (1, 1, 1)], breeding, each(grid.cost), size=7, generations=12, **more  # type: ignore[arg-type]
        )  # fmt: skip

    whole = search()
    part = search(limits=SearchLimits(evaluations=stop))
    assert part.stop is StopReason.EVALUATIONS and part.evaluations == stop
    again = search(resume=part.checkpoint)
    assert replace(again, evaluations=0, seconds=0) == replace(
        whole, evaluations=0, seconds=0
    )
    assert 0 <= part.evaluations + again.evaluations - whole.evaluations < 7


def test_sizes_and_generations_are_counted_from_one() -> None:
    with pytest.raises(
        InputError, match="size 0 and generations 50 must be at least 1"
    ):
        evolve([0], Breeding(lambda n, _: n), each(float), size=0)
