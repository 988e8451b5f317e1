"""What all methods have in common: limits, determinism, bounds that callers give, events."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.methods import METHODS, SEVERAL_STARTS, Cost, Method
from tests.search.spaces import Grid, Point
from tilewright.base import limits
from tilewright.base.errors import InputError, LimitError
from tilewright.base.events import record
from tilewright.search import SearchLimits, StopReason, each
from tilewright.search.run import Run

every = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
grids = st.builds(Grid, st.tuples(*[st.integers(1, 5)] * 3), st.integers(0, 999))
GRID = Grid((5, 4, 5), seed=3)
START = (4, 3, 4)


def counted(grid: Grid, calls: list[Point]) -> Cost:
    def cost(point: Point) -> float:
        calls.append(point)
        return grid.cost(point)

    return cost


@every
@given(grid=grids, most=st.integers(1, 40))
def test_the_limit_of_evaluations_is_kept(
    method: Method, grid: Grid, most: int
) -> None:
    calls: list[Point] = []
    found = method(
        grid, [grid.points[-1]], counted(grid, calls), SearchLimits(evaluations=most)
    )
    assert len(calls) == found.evaluations <= most
    assert found.cost == min(map(grid.cost, calls)) == grid.cost(found.state)
    if found.stop is StopReason.EVALUATIONS:
        assert found.evaluations == most and found.bound == -inf and found.gap == inf
    else:
        free = method(grid, [grid.points[-1]], grid.cost, SearchLimits())
        assert (found.state, found.stop) == (free.state, free.stop)


@every
@given(grid=grids)
def test_equal_arguments_give_equal_results(method: Method, grid: Grid) -> None:
    first, second = [list[Point](), list[Point]()]
    for calls in (first, second):
        method(grid, [grid.points[0]], counted(grid, calls), SearchLimits())
    assert first == second


@every
@given(grid=grids)
def test_what_is_found_is_never_worse_than_the_best_start(
    method: Method, grid: Grid
) -> None:
    found = method(grid, grid.points[:3], grid.cost, SearchLimits())
    starts = (
        grid.points[:3]
        if method in map(METHODS.get, SEVERAL_STARTS)
        else grid.points[:1]
    )
    assert found.cost <= min(map(grid.cost, starts))
    assert found.bound <= grid.least <= found.cost


@every
def test_without_time_one_state_is_evaluated(method: Method) -> None:
    found = method(GRID, [START], GRID.cost, SearchLimits(seconds=0))
    assert (found.stop, found.evaluations, found.state) == (
        StopReason.SECONDS,
        1,
        START,
    )


@every
def test_the_caller_ends_a_search_before_an_evaluation(method: Method) -> None:
    calls: list[Point] = []
    until = SearchLimits(until=lambda: len(calls) >= 4)
    found = method(GRID, [START], counted(GRID, calls), until)
    # Evolution evaluates its first state, then children six at a time.
    expected = 7 if method is METHODS["evolve"] else 4
    assert (found.stop, found.evaluations) == (StopReason.UNTIL, expected)


@every
def test_a_cost_that_meets_the_callers_bound_is_exact(method: Method) -> None:
    free = method(GRID, [START], GRID.cost, SearchLimits())
    grid = Grid(GRID.sides, GRID.seed)
    found = method(grid, [START], grid.cost, SearchLimits(), free.cost)
    assert (found.stop, found.state, found.bound) == (
        StopReason.BOUND,
        free.state,
        free.cost,
    )
    assert found.exact and found.gap == 0 and found.evaluations <= free.evaluations


@every
def test_a_callers_bound_above_a_cost_is_refused(method: Method) -> None:
    calls: list[Point] = []
    with pytest.raises(
        InputError, match=r"the bound of all states is 21, but its cost is -?\d+"
    ):
        method(GRID, [START], counted(GRID, calls), SearchLimits(), 21)
    assert calls == [START]


@every
def test_a_cost_that_is_no_number_is_refused(method: Method) -> None:
    with pytest.raises(InputError, match=r"the cost of \(4, 3, 4\) is nan"):
        method(GRID, [START], lambda point: nan, SearchLimits())


@every
def test_infinite_costs_are_not_feasible(method: Method) -> None:
    found = method(GRID, [START], lambda point: inf, SearchLimits())
    assert found.cost == inf and found.state == START


@every
def test_events_say_how_a_search_went(method: Method) -> None:
    with record() as events:
        found = method(GRID, [START], GRID.cost, SearchLimits(evaluations=9))
    better = [e.fields for e in events if e.kind == "search-improved"]
    assert [f["cost"] for f in better] == sorted(
        {f["cost"] for f in better}, reverse=True
    )
    assert better[-1]["cost"] == found.cost
    (span,) = (e for e in events if e.kind == "search")
    assert span.elapsed is not None and span.fields == {
        "method": better[0]["method"],
        "evaluations": found.evaluations,
        "cost": found.cost,
        "stop": str(found.stop),
    }


@every
def test_an_error_of_a_cost_reaches_the_caller(method: Method) -> None:
    def broken(point: Point) -> float:
        raise ZeroDivisionError

    with record() as events, pytest.raises(ZeroDivisionError):
        method(GRID, [START], broken, SearchLimits())
    assert [e.fields["error"] for e in events if e.kind == "search"] == [
        "ZeroDivisionError"
    ]


@every
def test_a_search_keeps_the_limits_of_the_compilation_around_it(method: Method) -> None:
    with limits.compilation():
        assert limits._own.compilation is not None
        limits._own.compilation.started -= 1e6
        with pytest.raises(LimitError, match="the compilation takes over"):
            method(GRID, [START], GRID.cost, SearchLimits())


@pytest.mark.parametrize("name", SEVERAL_STARTS[1:])
def test_there_must_be_a_state(name: str) -> None:
    with pytest.raises(
        InputError, match=f"{name}: there is no state; give at least one"
    ):
        METHODS[name](GRID, [], GRID.cost, SearchLimits())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"evaluations": 0}, "evaluations 0 must be at least 1"),
        ({"frontier": True}, "frontier True must be at least 1"),
        ({"evaluations": 1.5}, r"evaluations 1\.5 must be"),
        ({"seconds": -1}, "a limit of -1 seconds"),
        ({"seconds": nan}, "a limit of nan seconds"),
    ],
)
def test_limits_that_are_none_are_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        SearchLimits(**wrong)  # type: ignore[arg-type]


def test_costs_of_several_states_are_as_many() -> None:
    run: Run[int, float] = Run("test", lambda states: [1.0])
    with pytest.raises(InputError, match="1 costs for 2 states"), run:
        run.evaluate_all([1, 2])
    assert each(abs)([-1, 2]) == [1, 2]
