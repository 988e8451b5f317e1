"""Coarse to fine: the states that a pass keeps, that the next one may visit, and that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.spaces import Chain, Point
from tilewright.base.errors import InputError
from tilewright.search import SearchLimits, StopReason, beam, coarse_to_fine, each

chains = st.builds(
    Chain, st.integers(1, 4), st.integers(1, 3), st.integers(0, 999), st.just(1)
)


def prefix(state: Point, depth: int) -> Point:
    return state[:depth]


def below(chain: Chain) -> Any:
    return lambda state: chain.expand(state) or []


def bound(chain: Chain) -> Any:
    """A state that is not complete costs as much as its best completion may."""
    return each(chain.bound)


@given(chain=chains)
def test_a_beam_that_is_wide_enough_finds_the_best_of_all(chain: Chain) -> None:
    def cost(state: Point) -> float:
        return chain.part(state) if len(state) == chain.length else 1e6

    found = coarse_to_fine(
        (), below(chain), each(cost), shape=prefix, width=3**4, passes=2
    )
    assert found.cost == min(map(chain.part, chain.states))


def test_no_state_is_evaluated_twice_in_all_passes() -> None:
    chain = Chain(4, 3, 5, 1)
    seen: list[Point] = []

    def costs(states: Sequence[Point]) -> list[float]:
        seen.extend(states)
        return [chain.bound(s) for s in states]

    found = coarse_to_fine((), below(chain), costs, shape=prefix, width=3)
    assert len(seen) == len(set(seen)) == found.evaluations


def deceptive(state: Point) -> float:
    """Ways that begin with 0 look best by a little for as long as they are short."""
    hidden = (1, 0, 0, 0)
    if state == hidden:
        return 1.0
    return 20.0 - len(state) + (state[:1] == (1,)) * 0.5


def deep(state: Point) -> list[Point]:
    return [(*state, n) for n in range(4)] if len(state) < 4 else []


def test_shapes_that_differ_stay_in_the_beam() -> None:
    """A plain beam of four follows the first way alone; here each shape has its place."""
    plain = beam((), deep, deceptive, width=4, depth=4)
    assert plain.cost > 1
    found = coarse_to_fine((), deep, each(deceptive), shape=prefix, width=6, passes=1)
    assert found.state == (1, 0, 0, 0)


def test_the_next_pass_goes_the_ways_that_were_good() -> None:
    levels: list[list[Point]] = []

    def expand(state: Point) -> list[Point]:
        levels[-1].append(state)
        return deep(state)

    def cost(state: Point) -> float:
        return 1.0 if state[:1] == (2,) else 10.0 + sum(state)

    def costs(states: Sequence[Point]) -> list[float]:
        return [cost(s) for s in states]

    def recorded(state: Point) -> list[Point]:
        if not state:
            levels.append([])
        return expand(state)

    coarse_to_fine((), recorded, costs, shape=prefix, width=3, passes=2)
    first, second = ({s[0] for s in level if s} for level in levels)
    assert len(first) > 1 and first > {2}
    assert 2 in second and len(levels[1]) <= len(levels[0])
    # States off the path cost eleven times as much: children of 2 fill the beam of later levels.
    assert all(s[:1] == (2,) for s in levels[1] if len(s) > 1)


def test_what_goes_astray_leaves_its_place_to_what_does_not() -> None:
    """The best lies behind (0, 1), which is worse than all of (1, n): only the second pass, which
    goes where (0, 0) was, has room for it."""
    dear = {(0, 0): 1.0, (0, 1): 20.0, (0, 1, 0): 0.5}

    def cost(state: Point) -> float:
        if state in dear:
            return dear[state]
        return {0: 30.0, 1: 5.0 + state[0]}.get(len(state), 4.0 + 20 * (state[0] == 0))

    def costs(states: Sequence[Point]) -> list[float]:
        return [cost(s) if s else 9.0 for s in states]

    def expand(state: Point) -> list[Point]:
        return [(*state, n) for n in range(4)] if len(state) < 3 else []

    ends = [
        coarse_to_fine((), expand, costs, shape=prefix, width=2, passes=passes).state
        for passes in (1, 2)
    ]
    assert ends == [(0, 0), (0, 1, 0)]


def test_what_is_not_feasible_is_not_expanded() -> None:
    expanded: list[Point] = []

    def expand(state: Point) -> list[Point]:
        expanded.append(state)
        return deep(state)

    found = coarse_to_fine(
        (),
        expand,
        each(lambda s: inf if s[:1] in {(0,), (1,)} else 5.0 - len(s)),
        shape=prefix,
        width=8,
        passes=1,
    )
    assert found.cost == 1 and all(s[:1] not in {(0,), (1,)} for s in expanded)


def test_limits_and_bounds_are_kept() -> None:
    found = coarse_to_fine(
        (), deep, each(deceptive), shape=prefix, limits=SearchLimits(evaluations=7)
    )
    assert (found.stop, found.evaluations) == (StopReason.EVALUATIONS, 7)
    met = coarse_to_fine((), deep, each(deceptive), shape=prefix, lower=1.0)
    assert (met.stop, met.exact) == (StopReason.BOUND, True)


def test_arguments_are_checked() -> None:
    with pytest.raises(InputError, match="width 0 and passes 5 must be at least 1"):
        coarse_to_fine((), deep, each(deceptive), shape=prefix, width=0)
    with pytest.raises(InputError, match="a bound of -1"):
        coarse_to_fine((), deep, each(deceptive), shape=prefix, lower=-1)
    with pytest.raises(InputError, match="the bound of all states is 0"):
        coarse_to_fine((), deep, each(lambda s: -1.0), shape=prefix)
