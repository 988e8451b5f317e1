"""Branch and bound against enumeration: the same optimum, bounds that hold, bounds that do not."""

from __future__ import annotations

from itertools import combinations
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.spaces import Chain, Grid, Point
from tilewright.base.errors import InputError
from tilewright.search import (
    Order,
    SearchLimits,
    StopReason,
    branch_and_bound,
    exhaustive,
)

chains = st.builds(Chain, st.integers(1, 5), st.integers(1, 4), st.integers(0, 999))
orders = pytest.mark.parametrize("order", Order)


@orders
@given(chain=chains)
def test_the_optimum_of_enumeration_is_found(order: Order, chain: Chain) -> None:
    calls: list[Point] = []

    def cost(state: Point) -> float:
        calls.append(state)
        return chain.part(state)

    every = exhaustive(chain.states, chain.part)
    found = branch_and_bound((), chain.expand, cost, chain.bound, order=order)
    assert every.exact and every.evaluations == chain.options**chain.length
    assert found.cost == found.bound == every.cost and found.stop is StopReason.FINISHED
    assert len(calls) == len(set(calls)) == found.evaluations <= every.evaluations
    if order is Order.DEPTH:
        assert found.state == every.state  # of equal costs the first


@orders
def test_a_bound_saves_most_evaluations(order: Order) -> None:
    chain = Chain(6, 4, seed=1)
    found = branch_and_bound((), chain.expand, chain.part, chain.bound, order=order)
    assert found.evaluations < 4**6 / 20


@orders
@given(chain=chains, most=st.integers(1, 30))
def test_the_bound_holds_after_every_stop(
    order: Order, chain: Chain, most: int
) -> None:
    best = min(map(chain.part, chain.states))
    for limits in (
        SearchLimits(evaluations=most),
        SearchLimits(frontier=most),
        SearchLimits(seconds=0),
    ):
        found = branch_and_bound(
            (), chain.expand, chain.part, chain.bound, order=order, limits=limits
        )
        assert chain.bound(()) <= found.bound <= best <= found.cost
        assert found.exact == (found.cost == found.bound)
        assert found.exact or found.stop is not StopReason.FINISHED
        assert (found.state is None) == (found.cost == inf)


def test_the_frontier_is_kept_in_memory_as_far_as_the_limit_allows() -> None:
    chain = Chain(5, 4, seed=2)
    few = SearchLimits(frontier=16)
    depth = branch_and_bound((), chain.expand, chain.part, chain.bound, limits=few)
    wide = branch_and_bound(
        (), chain.expand, chain.part, chain.bound, limits=few, order=Order.BOUND
    )
    assert depth.stop is StopReason.FINISHED and depth.exact
    assert wide.stop is StopReason.FRONTIER and wide.state is None
    for most, stop in ((4, StopReason.FINISHED), (3, StopReason.FRONTIER)):
        one = Chain(1, 4)
        limits = SearchLimits(frontier=most)
        found = branch_and_bound((), one.expand, one.part, one.bound, limits=limits)
        assert found.stop is stop


@orders
@given(chain=chains, gap=st.floats(0, 2), most=st.integers(1, 9))
def test_a_gap_that_is_allowed_is_kept(
    order: Order, chain: Chain, gap: float, most: int
) -> None:
    best = min(map(chain.part, chain.states))
    for limits in (SearchLimits(), SearchLimits(evaluations=most)):
        found = branch_and_bound(
            (),
            chain.expand,
            chain.part,
            chain.bound,
            order=order,
            gap=gap,
            limits=limits,
        )
        assert found.bound <= best <= found.cost
        assert found.gap <= gap or found.stop is StopReason.EVALUATIONS


def test_a_gap_saves_evaluations() -> None:
    chain = Chain(6, 4, seed=1, low=5)
    exact, near = (
        branch_and_bound((), chain.expand, chain.part, chain.bound, gap=gap)
        for gap in (0, 0.3)
    )
    assert (
        near.evaluations < exact.evaluations
        and exact.cost <= near.cost <= 1.3 * exact.cost
    )


@orders
def test_negative_costs_have_gaps_too(order: Order) -> None:
    for seed in range(20):
        chain = Chain(3, 3, seed, low=-30, high=-10)
        best = min(map(chain.part, chain.states))
        found = branch_and_bound(
            (), chain.expand, chain.part, chain.bound, order=order, gap=0.2
        )
        assert found.bound <= best <= found.cost <= best / 1.2


@orders
def test_where_nothing_is_feasible_that_is_proved(order: Order) -> None:
    chain = Chain(3, 3)
    found = branch_and_bound(
        (), chain.expand, lambda state: inf, lambda state: 0.0, order=order
    )
    assert (found.state, found.cost, found.evaluations) == (None, inf, 27)
    none = branch_and_bound((), lambda state: [], chain.part, chain.bound, order=order)
    assert none.state is None and none.exact
    closed = branch_and_bound(
        (), chain.expand, chain.part, lambda state: inf, order=order
    )
    assert closed.bound == inf and closed.evaluations == 0


@orders
@pytest.mark.parametrize("seed", range(5))
def test_states_of_equal_keys_are_looked_at_once(order: Order, seed: int) -> None:
    """Three of eight things, picked in any order, each pair of which costs something."""
    pairs = Grid((8, 8), seed, low=1, high=9)

    def cost(picked: Point) -> float:
        return sum(pairs.cost(pair) for pair in combinations(sorted(picked), 2))

    def expand(picked: Point) -> list[Point] | None:
        if len(picked) == 3:
            return None
        return [(*picked, n) for n in range(8) if n not in picked]

    plain, found = (
        branch_and_bound((), expand, cost, lambda picked: 0.0, order=order, key=key)
        for key in (None, frozenset)
    )
    assert found.cost == plain.cost == min(map(cost, combinations(range(8), 3)))
    assert found.state == plain.state and found.exact
    assert (plain.evaluations, found.evaluations) == (8 * 7 * 6, 8 * 7)


def test_a_bound_above_a_cost_is_named() -> None:
    chain = Chain(2, 2)
    with pytest.raises(
        InputError, match=r"the bound of this state is \d+, but its cost is \d+; "
    ):
        branch_and_bound(
            (), chain.expand, chain.part, lambda s: chain.bound(s) + len(s)
        )


def test_a_bound_that_falls_from_parent_to_child_is_named() -> None:
    chain = Chain(2, 2)
    with pytest.raises(
        InputError,
        match=r"the bound of its parent is 6, but its own bound is 5; the state is \(0,\)",
    ):
        branch_and_bound((), chain.expand, chain.part, lambda state: 6.0 - len(state))


@pytest.mark.parametrize("state", [(), (0,), (0, 0)])
def test_a_bound_that_is_no_number_is_named(state: Point) -> None:
    chain = Chain(2, 2)
    with pytest.raises(InputError, match=r"its own bound is nan; the state is \("):
        branch_and_bound(
            (), chain.expand, chain.part, lambda s: nan if s == state else 0.0
        )


def test_rounding_is_no_wrong_bound() -> None:
    third = 0.1 + 0.2  # above 0.3 by rounding
    found = branch_and_bound(
        0, lambda n: [1] if n == 0 else None, lambda n: 0.3, lambda n: third
    )
    assert found.cost == 0.3 and found.exact


def test_what_is_no_gap_is_refused() -> None:
    chain = Chain(2, 2)
    with pytest.raises(InputError, match=r"gap -0\.1"):
        branch_and_bound((), chain.expand, chain.part, chain.bound, gap=-0.1)
