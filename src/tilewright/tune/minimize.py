"""Any Python function as the cost of any space: the interface of the Auto-Tuning Framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

from tilewright.base.errors import TilewrightError
from tilewright.search.result import Limits, Result, Stop
from tilewright.search.run import Run, each
from tilewright.tune.base import Candidate, Measurement, Space, Status, Trial
from tilewright.tune.strategies import Setup, strategy

Values = Mapping[str, Any]


class CostError(TilewrightError):
    """Raised by a cost function for a configuration that does not work: the trial has failed."""

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
    """The configuration of a space that costs least, of those that were tried.

    cost: of a configuration, its parameters by name; of any unit. It raises CostError for one that
    does not work, which then costs infinitely much, as does a cost that is not a finite number.
    Other errors reach the caller. technique: the name of a strategy without a model, or of one of
    the bandit's techniques. trials, seconds: limits; without any, every configuration is tried.

    Equal arguments give equal results, but for a limit of seconds. A result is exact where every
    configuration was tried. Raises InputError for an unknown technique and for limits that are
    none.
    """
    searching = strategy(technique, Setup(space, seed=seed))
    run: Run[Candidate, float] = Run(
        "minimize", each(lambda c: _cost(cost, c)), Limits(trials, seconds)
    )
    failed = Measurement(Status.CRASH)
    with run:
        while batch := searching.propose(1):
            (candidate,) = batch
            found = run.evaluate(candidate)
            ok = Measurement(Status.OK, (found,))
            searching.tell([Trial(candidate, failed if found == inf else ok)])
    bound = run.incumbent if run.stop is Stop.FINISHED else -inf
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
