"""Minimize any Python function over any space: the interface of the Auto-Tuning Framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

from tilewright.base.errors import TilewrightError
from tilewright.search.result import Result, SearchLimits, StopReason
from tilewright.search.run import Run, each
from tilewright.tune.base import Candidate, Measurement, Space, Status, Trial
from tilewright.tune.strategies import Setup, strategy

Values = Mapping[str, Any]


class CostError(TilewrightError):
    """Raised by a cost function for a configuration that does not work: the trial fails."""

    code = "TW-COST"


def minimize(
    cost: Callable[[Values], float],
    space: Space,
    *,
    technique: str = "bandit",
    trials: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Result[Values, float]:
    """Find the configuration of a space with the lowest cost among those tried.

    cost: maps a configuration (its parameters by name) to a number in any unit. It raises CostError
    for an invalid configuration, whose cost is then infinite, as is any non-finite cost. Other
    errors propagate. technique: the name of a strategy without a model, or of one of the bandit's
    techniques. trials, seconds: limits; without any, every configuration is tried.

    Deterministic for equal arguments, unless `seconds` is given. The result is exact if every
    configuration was tried. Raises InputError for an unknown technique or an invalid limit.
    """
    searching = strategy(technique, Setup(space, seed=seed))
    run: Run[Candidate, float] = Run(
        "minimize", each(lambda c: _cost(cost, c)), SearchLimits(trials, seconds)
    )
    failed = Measurement(Status.CRASH)
    with run:
        while batch := searching.propose(1):
            (candidate,) = batch
            found = run.evaluate(candidate)
            ok = Measurement(Status.OK, (found,))
            searching.tell([Trial(candidate, failed if found == inf else ok)])
    bound = run.incumbent if run.stop is StopReason.FINISHED else -inf
    best = run.result(bound)
    return Result(
        best.state.values,
        best.cost,
        best.bound,
        best.stop,
        best.evaluations,
        best.seconds,
    )


def _cost(cost: Callable[[Values], float], candidate: Candidate) -> float:
    try:
        found = float(cost(candidate.values))
    except CostError:
        return inf
    return found if isfinite(found) else inf
