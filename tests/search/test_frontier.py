"""Beam and best-first search: exact when wide enough, and what they look at."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.spaces import Grid, Point
from tilewright.base.errors import InputError
from tilewright.search import SearchLimits, StopReason, beam, best_first

grids = st.builds(
    Grid, st.tuples(st.integers(1, 4), st.integers(1, 5)), st.integers(0, 999)
)


@given(grid=grids)
def test_a_beam_that_drops_nothing_finds_the_optimum(grid: Grid) -> None:
    found = beam((0, 0), grid.neighbors, grid.cost, width=20, depth=20)
    assert found.cost == found.bound == grid.least and found.exact
    assert found.evaluations == len(grid.points)  # each once


@given(grid=grids, depth=st.integers(1, 4))
def test_a_beam_looks_as_deep_as_it_says(grid: Grid, depth: int) -> None:
    found = beam((0, 0), grid.neighbors, grid.cost, width=20, depth=depth)
    near = [p for p in grid.points if sum(p) <= depth]
    assert found.cost == min(map(grid.cost, near)) and found.evaluations == len(near)


def test_a_beam_that_drops_states_proves_nothing() -> None:
    grid = Grid((9, 9), seed=1)
    found = beam((0, 0), grid.neighbors, grid.cost, width=2, depth=20)
    assert found.stop is StopReason.FINISHED and found.bound == -inf and not found.exact
    assert found.evaluations < len(grid.points)


def test_of_equal_costs_the_first_found_is_kept() -> None:
    steps = {"": "ab", "a": "cd", "b": "ef", "c": "", "d": "", "e": "", "f": ""}
    expanded = []

    def expand(state: str) -> str:
        expanded.append(state)
        return steps[state]

    found = beam("", expand, lambda state: -len(state), width=1)
    assert (found.state, expanded) == ("a", ["", "a", "c"])


def test_keys_make_states_one() -> None:
    def halves(n: int) -> Iterator[int]:
        yield from (n // 2, n // 2 + 1)

    for method in (beam, lambda start, *rest, key: best_first([start], *rest, key=key)):
        found = method(64, halves, float, key=lambda n: n % 10)
        assert found.evaluations <= 10


def test_a_beam_must_have_a_width_and_a_depth() -> None:
    with pytest.raises(
        InputError, match="search: width 0 and depth 12 must be at least 1; give"
    ):
        beam(0, lambda n: [n], float, width=0)


@given(grid=grids)
def test_best_first_finds_the_optimum_of_what_it_reaches(grid: Grid) -> None:
    found = best_first([(0, 0)], grid.neighbors, grid.cost)
    assert found.cost == found.bound == grid.least and found.stop is StopReason.FINISHED
    assert found.evaluations == len(grid.points)


@given(grid=grids, slack=st.integers(0, 3))
def test_a_bound_saves_evaluations_and_its_proof(grid: Grid, slack: int) -> None:
    calls: list[Point] = []

    def cost(point: Point) -> float:
        calls.append(point)
        return grid.cost(point)

    found = best_first(
        [(0, 0)], grid.neighbors, cost, bound=lambda point: grid.cost(point) - slack
    )
    best = inf
    for point in calls:
        assert grid.cost(point) - slack < best
        best = min(best, grid.cost(point))
    assert found.cost == best
    assert found.exact == (len(calls) == len(grid.points))


def test_the_cheapest_state_is_expanded_next() -> None:
    grid = Grid((6, 6), seed=5)
    expanded: list[Point] = []

    def expand(point: Point) -> Iterator[Point]:
        expanded.append(point)
        return grid.neighbors(point)

    best_first([(0, 0)], expand, grid.cost)
    waiting = {(0, 0)}
    for point in expanded:
        assert grid.cost(point) == min(map(grid.cost, waiting))
        waiting |= set(grid.neighbors(point))
        waiting -= set(expanded[: expanded.index(point) + 1])


def test_patience_counts_expansions_in_vain() -> None:
    expanded: list[int] = []

    def up(n: int) -> list[int]:
        expanded.append(n)
        return [n + 1]

    costs = {0: 9, 1: 8, 2: 8.5, 3: 8.6, 4: 7, 5: 20, 6: 21, 7: 22, 8: 0}
    found = best_first([0], up, lambda n: costs[n], patience=3)
    assert (found.state, found.stop, expanded) == (
        4,
        StopReason.PATIENCE,
        [0, 1, 2, 3, 4, 5, 6],
    )
    assert not found.exact
    with pytest.raises(InputError, match="patience 0 must be at least 1"):
        best_first([0], up, float, patience=0)


@given(grid=grids)
def test_guesses_change_no_optimum(grid: Grid) -> None:
    """However wrong they are, all that is within reach is evaluated in the end, once."""
    found = best_first(
        [(0, 0)], grid.neighbors, grid.cost, guess=lambda p: -grid.cost(p)
    )
    assert found.cost == found.bound == grid.least and found.stop is StopReason.FINISHED
    assert found.evaluations == len(grid.points)


def test_a_state_is_evaluated_when_its_guess_is_the_least_of_all() -> None:
    asked: list[int] = []

    def cost(n: int) -> float:
        asked.append(n)
        return float(n)

    found = best_first(
        [50], lambda n: range(40, 50), cost, guess=float, slack=1.05, patience=1
    )
    assert (found.state, asked) == (40, [50, 40, 41])  # from 42 on it is too much
    assert found.stop is StopReason.PATIENCE and not found.exact


def test_a_guess_too_high_for_the_slack_drops_a_state() -> None:
    found = best_first(
        [10], lambda n: [1], float, guess=lambda n: 10.5, slack=1.05, expansions=1
    )
    assert (found.state, found.evaluations) == (10, 1) and not found.exact
    found = best_first([10], lambda n: [1], float, guess=lambda n: 10.4, slack=1.05)
    assert found.state == 1


def test_what_the_last_expansion_led_to_is_evaluated_too() -> None:
    found = best_first(
        [9], lambda n: [n - 1], float, guess=lambda n: n + 0.5, expansions=2
    )
    assert (found.state, found.stop) == (7, StopReason.EXPANSIONS)


def test_the_caller_ends_a_search_that_only_expands() -> None:
    """Every state is known after the first expansion; each one is still expanded."""
    expanded: list[int] = []

    def all_of_them(n: int) -> range:
        expanded.append(n)
        return range(20)

    found = best_first(
        [0], all_of_them, float, limits=SearchLimits(until=lambda: len(expanded) > 3)
    )
    assert (found.stop, len(expanded)) == (StopReason.UNTIL, 4)


@pytest.mark.parametrize("guess", [None, float])
def test_a_limit_of_time_is_noticed_between_the_states_of_one_expansion(
    monkeypatch, guess
) -> None:
    """Each takes a second to make; most were visited already, or are only guessed."""
    now = [0.0]
    monkeypatch.setattr("tilewright.search.run.time.monotonic", lambda: now[0])

    def slow(n: int) -> Iterator[int]:
        for after in range(100):
            now[0] += 1
            yield after if guess else n

    found = best_first(
        [100], slow, float, guess=guess, limits=SearchLimits(seconds=3.0)
    )
    assert (found.stop, found.state, now[0]) == (StopReason.SECONDS, 100, 3.0)


def test_a_bound_above_its_cost_is_named() -> None:
    with pytest.raises(
        InputError, match="bound of this state is 1, but its cost is 0; the state"
    ):
        best_first([0], lambda n: [], float, bound=lambda n: n + 1)


def test_the_frontier_has_a_limit() -> None:
    """Five states wait at once, which is allowed, or one too many."""

    def five(n: int) -> list[int]:
        return [1, 2, 3, 4, 5] if n == 0 else []

    for most, stop, count in ((5, StopReason.FINISHED, 6), (4, StopReason.FRONTIER, 5)):
        limits = SearchLimits(frontier=most)
        for found in (
            best_first([0], five, float, limits=limits),
            beam(0, five, float, limits=limits),
        ):
            assert (found.stop, found.evaluations) == (stop, count)
            assert found.exact == (stop is StopReason.FINISHED)


def test_slack_follows_what_costs_a_little_more() -> None:
    """The way from 2 to 1 leads over 3: a slack of 1.5 does not reach it, 1.6 does."""
    costs = {0: 2.0, 1: 3.0, 2: 1.0}

    def up(n: int) -> list[int]:
        return [n + 1] if n + 1 in costs else []

    near = best_first([0], up, lambda n: costs[n], slack=1.5)
    assert (near.state, near.exact) == (0, False)
    far = best_first([0], up, lambda n: costs[n], slack=1.6)
    assert (far.state, far.exact) == (2, True)


def test_what_became_too_costly_is_not_expanded() -> None:
    """0 leads to 8 and 5; from 5 on 8 costs more than its slack allows."""
    after = {0: [1, 2], 1: [3], 2: [4], 3: [], 4: []}
    costs = {0: 9.0, 1: 8.0, 2: 5.0, 3: 1.0, 4: 5.0}
    expanded: list[int] = []

    def follow(n: int) -> list[int]:
        expanded.append(n)
        return after[n]

    best_first([0], follow, lambda n: costs[n], slack=1.2)
    assert 1 not in expanded and expanded[:2] == [0, 2]


def test_expansions_are_counted_and_the_cheapest_come_first() -> None:
    expanded: list[int] = []

    def more(n: int) -> list[int]:
        expanded.append(n)
        return [2 * n, 2 * n + 1]

    found = best_first([1], more, lambda n: -float(n), expansions=3)
    assert (found.stop, expanded) == (StopReason.EXPANSIONS, [1, 3, 7])
    assert found.state == 15 and not found.exact
    whole = best_first([4], lambda n: [n - 1] if n else [], float, expansions=5)
    assert (whole.state, whole.stop, whole.exact) == (0, StopReason.FINISHED, True)


@pytest.mark.parametrize("wrong", [{"slack": 0.5}, {"slack": nan}, {"expansions": 0}])
def test_slack_and_expansions_below_one_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        best_first([0], lambda n: [], float, **wrong)


@pytest.mark.parametrize("guess", [None, float])
def test_a_slack_of_one_follows_what_pays_by_itself(guess: Any) -> None:
    """From 9 each step leads one down, and one up, which is never expanded."""
    expanded: list[int] = []

    def expand(n: int) -> list[int]:
        expanded.append(n)
        return [n - 1, n + 1] if n else []

    found = best_first([9], expand, float, guess=guess, slack=1)
    assert found.state == 0 and expanded == list(range(9, -1, -1))
