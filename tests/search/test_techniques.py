"""Techniques alone: each finds more than chance does, and leaves where it is stuck."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import pytest

from tests.search.methods import GridMoves
from tests.search.spaces import Grid, Point
from tilewright.search import BOXED, Bandit, Box, SearchLimits, by_bandit
from tilewright.search.techniques import Breed, Climb, Cooling, Sweep
from tilewright.search.vectors import PatternSearch, Torczon, Vector

SIDES = (64,) * 5
TARGET = (3, 60, 31, 17, 44)


def bowl(point: Point) -> float:
    return 1.0 + sum(abs(a - b) for a, b in zip(point, TARGET, strict=True))


def cell(vector: Vector) -> Point:
    return tuple(min(63, int(64 * number)) for number in vector)


def best(technique: Any, seed: int = 0) -> float:
    starts = [(0,) * 5]
    limits = SearchLimits(evaluations=400)
    found = by_bandit(starts, [technique], bowl, steps=400, seed=seed, limits=limits)
    return found.cost


def chance(seed: int) -> float:
    draw = Random(seed)
    return min(bowl(tuple(draw.randrange(64) for _ in range(5))) for _ in range(400))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cooling(GridMoves(Grid(SIDES))),
        lambda: Climb(GridMoves(Grid(SIDES))),
        lambda: Breed(GridMoves(Grid(SIDES))),
        *(lambda of=of: of(Box(5, cell)) for of in BOXED.values()),
    ],
    ids=["cooling", "climb", "breed", "pattern", "differential", "torczon"],
)
def test_each_finds_more_than_chance(make: Callable[[], Any]) -> None:
    ends = sorted(best(make(), seed) for seed in range(5))
    by_chance = sorted(chance(seed) for seed in range(5))
    assert ends[2] < by_chance[2] and ends[0] < by_chance[0]


def test_a_climber_starts_anew_where_it_is_stuck() -> None:
    grid = Grid((1000,) * 2)
    climb = Climb(GridMoves(grid))
    random = Random(0)
    climb.tell((5, 5), 0.0, False, random)
    for _ in range(climb.patience):
        asked = climb.ask(random)
        assert asked is not None and sum(a != 5 for a in asked) <= 1  # a neighbor
        climb.tell(asked, 1.0, True, random)
    later = [climb.ask(random) for _ in range(5)]
    assert any(p is not None and 5 not in p for p in later)


def test_what_was_only_heard_of_does_not_move_a_walk() -> None:
    walk = Cooling(GridMoves(Grid((1000,) * 3)))
    random = Random(0)
    walk.tell((1, 1, 1), 5.0, True, random)
    walk.tell((9, 9, 9), 1.0, False, random)
    asked = walk.ask(random)
    assert asked is not None and asked.count(1) >= 2


def test_a_walk_does_not_go_to_what_failed() -> None:
    walk = Cooling(GridMoves(Grid((1000,) * 3)))
    random = Random(0)
    walk.tell((1, 1, 1), 5.0, True, random)
    for _ in range(50):
        walk.tell((9, 9, 9), inf, True, random)
    asked = walk.ask(random)
    assert asked is not None and asked.count(1) >= 2


def test_a_pattern_waits_for_its_answer_and_halves_its_step() -> None:
    pattern = PatternSearch(Box(1, lambda v: v))
    random = Random(9)  # which draws a number near the middle, first of all
    first = pattern.ask(random)
    assert first is not None and pattern.ask(random) is None
    pattern.tell(first, 1.0, True, random)
    steps = []
    for _ in range(4):
        asked = pattern.ask(random)
        assert asked is not None
        steps.append(abs(asked[0] - first[0]))
        pattern.tell(asked, 2.0, True, random)
    assert steps == pytest.approx([0.25, 0.25, 0.125, 0.125])


def test_a_simplex_moves_towards_what_is_better() -> None:
    torczon = Torczon(Box(2, lambda v: v))
    random = Random(3)
    seen: list[float] = []
    for _ in range(60):
        asked = torczon.ask(random)
        if asked is None:
            continue
        seen.append(abs(asked[0] - 0.7) + abs(asked[1] - 0.2))
        torczon.tell(asked, seen[-1], True, random)
    assert min(seen) < 0.05 < min(seen[:6])


@pytest.mark.parametrize("of", BOXED.values(), ids=BOXED)
def test_a_box_of_few_states_does_not_hang(of: Any) -> None:
    bandit = Bandit([of(Box(2, lambda v: (v[0] > 0.5, v[1] > 0.5)))])
    asked = []
    while (state := bandit.ask()) is not None:
        asked.append(state)
        bandit.tell(state, inf)
    assert 0 < len(asked) == len(set(asked)) <= 4


def test_a_sweep_takes_all_in_order_and_ends() -> None:
    bandit = Bandit([Sweep("abcb")])
    asked = []
    while (state := bandit.ask()) is not None:
        asked.append(state)
        bandit.tell(state, 1.0)
    assert asked == ["a", "b", "c"]
