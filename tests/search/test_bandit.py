"""The bandit prefers what finds something, forgets, asks nothing twice, and resumes."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log2, sqrt
from random import Random
from typing import Any, ClassVar

import pytest

from tests.search.methods import GridMoves
from tests.search.spaces import Grid, Point
from tilewright.base.errors import InputError
from tilewright.search import MOVING, Bandit, SearchLimits, StopReason, by_bandit


class Counting:
    """States by number: those of `better` improve on all that went before."""

    name: ClassVar[str] = "counting"

    def __init__(self, step: float) -> None:
        self.step = step
        self.asked = 0
        self.told: list[tuple[float, bool]] = []

    def ask(self, random: Random) -> float | None:
        self.asked += 1
        return self.step * self.asked

    def tell(self, state: float, cost: float, own: bool, random: Random) -> None:
        self.told.append((cost, own))


def play(bandit: Bandit[Any], cost: Callable[[Any], float], count: int) -> None:
    for _ in range(count):
        state = bandit.ask()
        bandit.tell(state, cost(state))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_technique_that_finds_better_states_is_preferred(place: int) -> None:
    techniques = [Counting(step) for step in (1.0, 1.5, 2.25)]
    techniques[place].step = -1.0
    bandit = Bandit(techniques)
    play(bandit, lambda n: n, 300)
    assert bandit.uses[place] > 240 and min(bandit.uses) >= 1


def test_scores_are_areas_under_curves_and_what_is_owed_to_rare_ones() -> None:
    down, up = Counting(-1.0), Counting(1.0)
    bandit = Bandit([down, up], exploration=0.5)
    assert bandit.scores == [inf, inf]
    bandit.tell(bandit.ask(), 5.0)  # `down` improves
    assert bandit.scores[1] == inf
    bandit.tell(bandit.ask(), 9.0)  # `up` does not
    owed = 0.5 * sqrt(2 * log2(2))
    assert bandit.scores == pytest.approx([1 + owed, owed])
    bandit.tell(bandit.ask(), 6.0)  # `down` again, in vain
    owed = 0.5 * sqrt(2 * log2(3) / 2)
    assert bandit.scores[0] == pytest.approx(2 * 1 / (2 * 3) + owed)


def test_what_was_good_long_ago_is_forgotten() -> None:
    good, later = Counting(-1.0), Counting(1.0)
    bandit = Bandit([good, later], window=20)
    play(bandit, lambda n: n, 50)
    assert bandit.uses[0] > 40
    before = list(bandit.uses)

    def turned(n: float) -> float:
        return -1000.0 - n if n > 0 else 0.0

    play(bandit, turned, 100)
    gained = [now - then for now, then in zip(bandit.uses, before, strict=True)]
    assert gained[1] > 60 > gained[0]


def test_all_are_told_and_only_one_owns() -> None:
    a, b = Counting(1.0), Counting(-1.0)
    bandit = Bandit([a, b])
    bandit.tell(bandit.ask(), 3.0)
    bandit.tell(123.0, 1.0)  # nobody asked
    assert a.told == [(3.0, True), (1.0, False)]
    assert b.told == [(3.0, False), (1.0, False)]


def test_states_are_not_asked_for_twice_and_end() -> None:
    grid = Grid((3, 3))
    bandit = Bandit([t(GridMoves(grid)) for t in MOVING.values()], seed=2)
    asked: list[Point] = []
    while (state := bandit.ask()) is not None:
        asked.append(state)
        bandit.tell(state, grid.cost(state))
    assert sorted(asked) == sorted(set(asked)) and len(asked) >= 8


def test_several_can_be_asked_for_before_any_is_answered() -> None:
    grid = Grid((20, 20))
    bandit = Bandit([t(GridMoves(grid)) for t in MOVING.values()])
    batch = [bandit.ask() for _ in range(16)]
    assert len(set(batch)) == 16 and None not in batch
    assert sum(bandit.uses) == 16 and min(bandit.uses) >= 1


def test_one_that_is_silent_is_passed_over() -> None:
    class Silent(Counting):
        def ask(self, random: Random) -> float | None:
            return None

    bandit = Bandit([Silent(0.0), Counting(1.0)])
    assert [bandit.ask(), bandit.ask()] == [1.0, 2.0]
    assert Bandit([Silent(0.0)]).ask() is None


@pytest.mark.parametrize("stop", [1, 5, 17, 39])
def test_an_interrupted_search_ends_as_one_that_was_not(stop: int) -> None:
    grid = Grid((9, 9, 9), seed=4)

    def search(**more: Any) -> Any:
        techniques = [t(GridMoves(grid)) for t in MOVING.values()]
        return by_bandit([(0, 0, 0)], techniques, grid.cost, steps=60, **more)

    whole = search()
    part = search(limits=SearchLimits(evaluations=stop))
    assert part.stop is StopReason.EVALUATIONS and part.evaluations == stop
    again = search(resume=part.checkpoint)
    assert part.evaluations + again.evaluations == whole.evaluations == 61
    assert again.checkpoint == whole.checkpoint


def test_a_bandit_needs_a_technique() -> None:
    with pytest.raises(InputError, match="techniques 0"):
        Bandit([])
