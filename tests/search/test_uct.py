"""Tree search: exact where it ends, better than chance where it cannot, and it resumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.spaces import Chain, Point
from tilewright.base.errors import InputError
from tilewright.search import SearchLimits, StopReason, each, tree_search

chains = st.builds(
    Chain, st.integers(0, 4), st.integers(1, 3), st.integers(0, 999), st.just(1)
)


def by_chance(chain: Chain) -> Any:
    def rollout(state: Point, random: Random) -> Point:
        missing = chain.length - len(state)
        return (*state, *(random.randrange(chain.options) for _ in range(missing)))

    return rollout


@given(chain=chains, rollouts=st.integers(1, 4))
def test_a_small_tree_is_searched_to_its_end(chain: Chain, rollouts: int) -> None:
    seen: list[Point] = []

    def costs(states: Sequence[Point]) -> list[float]:
        seen.extend(states)
        return [chain.part(s) for s in states]

    found = tree_search((), chain.expand, by_chance(chain), costs, rollouts=rollouts)
    assert found.exact and found.stop is StopReason.FINISHED
    assert found.cost == min(map(chain.part, chain.states))
    assert sorted(seen) == sorted(chain.states)  # each once


def test_a_large_tree_is_searched_better_than_by_chance() -> None:
    """Twelve choices of eight whose costs add up: 8**12 outcomes, of which 1,500 are costed."""

    def cost(state: Point) -> float:
        return float(sum(abs(n - 3 * place % 8) for place, n in enumerate(state)))

    chain = Chain(12, 8)
    ends = []
    for seed in range(3):
        found = tree_search(
            (),
            chain.expand,
            by_chance(chain),
            each(cost),
            iterations=10_000,
            seed=seed,
            limits=SearchLimits(evaluations=1500),
        )
        ends.append(found.cost)
    draw = Random(0)
    chance = [
        min(cost(by_chance(chain)((), draw)) for _ in range(1500)) for _ in range(3)
    ]
    assert max(ends) < min(chance)


def test_it_goes_where_outcomes_are_good() -> None:
    costed: list[Point] = []

    def costs(states: Sequence[Point]) -> list[float]:
        costed.extend(states)
        return [100.0 * (s[0] != 5) + sum(s) for s in states]

    chain = Chain(6, 10)
    tree_search((), chain.expand, by_chance(chain), costs, iterations=400, rollouts=1)
    share = sum(s[0] == 5 for s in costed) / len(costed)
    assert share > 0.5 and {s[0] for s in costed} == set(range(10))


def test_dead_ends_are_left() -> None:
    def expand(state: Point) -> list[Point] | None:
        if len(state) == 2:
            return None
        return [] if state == (0,) else [(*state, n) for n in range(2)]

    def rollout(state: Point, random: Random) -> Point:
        return (*state, 1, 1)[:2]

    found = tree_search((), expand, rollout, each(lambda s: float(sum(s))))
    assert (found.state, found.exact) == ((1, 0), True)


def test_a_tree_without_outcomes_has_no_result() -> None:
    with pytest.raises(InputError, match="tree_search: there is no state"):
        tree_search((), lambda s: [], lambda s, r: s, each(lambda s: 0.0))


def test_infinite_costs_are_not_feasible() -> None:
    chain = Chain(2, 3)
    found = tree_search(
        (), chain.expand, by_chance(chain), each(lambda s: inf if s[0] else 1.0)
    )
    assert found.cost == 1 and found.exact


@pytest.mark.parametrize("stop", [1, 2, 17, 60])
def test_an_interrupted_search_ends_as_one_that_was_not(stop: int) -> None:
    chain = Chain(5, 4, 3, 1)

    def search(**more: Any) -> Any:
        return tree_search(
            (), chain.expand, by_chance(chain), each(chain.part), iterations=60, **more
        )

    whole = search()
    part = search(limits=SearchLimits(evaluations=stop))
    assert part.stop is StopReason.EVALUATIONS and part.evaluations == stop
    again = search(resume=part.checkpoint)
    ends = [(r.state, r.cost, r.bound, r.stop) for r in (again, whole)]
    assert ends[0] == ends[1]
    assert replace(again.checkpoint) == whole.checkpoint
    assert part.evaluations + again.evaluations < whole.evaluations + 4


def test_numbers_are_counted_from_one() -> None:
    with pytest.raises(InputError, match="iterations 0 and rollouts 4"):
        tree_search((), lambda s: None, lambda s, r: s, each(len), iterations=0)
