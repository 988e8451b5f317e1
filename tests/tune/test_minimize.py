"""Any function as a cost: what is found, what fails, what ends it."""

from __future__ import annotations

from functools import cache
from math import inf, log, nan
from random import Random
from typing import Any

import pytest

from tilewright.base.errors import InputError
from tilewright.search import StopReason
from tilewright.testing.landscapes import Landscape, bowl
from tilewright.tune.base import Candidate
from tilewright.tune.minimize import CostError, minimize
from tilewright.tune.space import Divisors, Parameter, ParameterSpace

SPACE = Landscape((10,) * 6, bowl)


def cost(values: Any) -> float:
    return bowl(tuple(values.values()))


@pytest.mark.representatives("bandit", "climb", "cooling")
@pytest.mark.parametrize("technique", ["bandit", "climb", "breed", "cooling"])
def test_a_function_is_minimized_better_than_by_chance(technique: str) -> None:
    assert best(technique) < best("random") - 0.1


@cache
def best(technique: str) -> float:
    """Of three minimizations, the end in the middle."""
    ends = [
        minimize(cost, SPACE, technique=technique, trials=300, seed=seed).cost
        for seed in range(3)
    ]
    return sorted(ends)[1]


def test_a_small_space_is_searched_to_its_end() -> None:
    space = Landscape((4, 5), bowl)
    for technique in ("bandit", "exhaustive", "random", "climb"):
        found = minimize(cost, space, technique=technique)
        assert found.exact and found.evaluations == 20
        assert found.cost == min(map(space.seconds, space))
        assert space.seconds(space.candidate(tuple(found.state.values()))) == found.cost


def test_configurations_that_do_not_work_cost_one_trial() -> None:
    def picky(values: Any) -> float:
        if values["p00"] > 1:
            raise CostError("it does not fit", where="device 0")
        return {0: nan, 1: 5.0 + values["p01"]}[values["p00"]]

    found = minimize(picky, Landscape((4, 5), bowl))
    assert (found.cost, dict(found.state)) == (5.0, {"p00": 1, "p01": 0})
    assert found.evaluations == 20


def test_all_may_fail() -> None:
    def broken(values: Any) -> float:
        raise CostError("no device")

    found = minimize(broken, SPACE, trials=7)
    assert (found.cost, found.stop, found.evaluations) == (
        inf,
        StopReason.EVALUATIONS,
        7,
    )


def test_other_errors_reach_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        minimize(lambda values: 1 / 0, SPACE, trials=7)


def test_limits_and_names_are_checked() -> None:
    found = minimize(cost, SPACE, seconds=0)
    assert (found.stop, found.evaluations) == (StopReason.SECONDS, 1)
    with pytest.raises(InputError, match="evaluations 0"):
        minimize(cost, SPACE, trials=0)
    with pytest.raises(InputError, match="evolutionary needs a task"):
        minimize(cost, SPACE, technique="evolutionary", trials=1)


def test_equal_arguments_give_equal_results() -> None:
    runs = [minimize(cost, SPACE, trials=60, seed=seed) for seed in (3, 3, 4)]
    assert runs[0].state == runs[1].state
    seen: list[list[Any]] = []
    for seed in (3, 3, 4):
        asked: list[Any] = []
        minimize(lambda v, a=asked: a.append(v) or cost(v), SPACE, trials=30, seed=seed)  # type: ignore[misc]
        seen.append(asked)
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize("technique", ["bandit", "pattern", "torczon", "differential"])
def test_parameters_that_depend_on_others_are_decided_one_by_one(
    technique: str,
) -> None:
    space = ParameterSpace(
        Parameter("tile", Divisors(720720)),
        Parameter("inner", Divisors(lambda tile: tile)),
        Parameter("unroll", Divisors(lambda inner: inner)),
    )
    asked: list[dict[str, int]] = []

    def far(values: Any) -> float:
        asked.append(dict(values))
        sizes = (values["tile"], values["inner"], values["unroll"])
        return sum(abs(log(n / m)) for n, m in zip(sizes, (5040, 360, 12), strict=True))

    found = minimize(far, space, technique=technique, trials=300)
    assert found.cost < min(far(c.values) for c in chance(space, 30))
    for values in asked:
        assert (
            values["tile"] % values["inner"] == 0 == values["inner"] % values["unroll"]
        )


def chance(space: ParameterSpace, count: int) -> list[Candidate]:
    random = Random(0)
    return [space.sample(random) for _ in range(count)]
