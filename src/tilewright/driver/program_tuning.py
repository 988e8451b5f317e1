"""Tunes one program of a notation: searched like a model's kernel, and compared as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from tilewright.base.errors import UnsupportedError
from tilewright.driver.in_network import NetworkTimes, kept
from tilewright.driver.options import Options
from tilewright.driver.same_results import Array
from tilewright.driver.schedulable import Schedulable
from tilewright.driver.tuned import TunedModel
from tilewright.driver.tuning import feeds_of
from tilewright.driver.tuning_session import (
    How,
    Session,
    budget_of,
    improved,
    records_path,
)
from tilewright.runtime.bundle import process_functions
from tilewright.runtime.executable import Executable
from tilewright.tune.base import Measurement, Status
from tilewright.tune.tuner import TaskOutcome

Build = Callable[
    [Path | None], Executable
]  # with the records of a file, or without any


def tune_program(
    program: Schedulable,
    build: Build,
    inputs: Sequence[Array] = (),
    *,
    trials: int | None = None,
    seconds: float | None = None,
    expected_gain: float = 0.0,
    records: str | Path | None = None,
    until: Callable[[], bool] | None = None,
    how: How | None = None,
) -> TunedModel:
    """Search for a faster schedule; builds of the same program use it from then on.

    build: builds the program without records, or with those of a file. inputs: for the final
    comparison of both, which decides; random by default. The other arguments and the errors are as
    for `driver.tune`; UnsupportedError also for code that calls functions of this process. If the
    program has a written schedule (`program.usual`), the best schedule is compared with that one,
    not only with the default of its space.
    """
    how = how or How()
    budget = budget_of(trials, seconds, expected_gain)
    path = records_path(records)
    task = program.task()
    options = Options.of({**program.options, "records": False})
    plain = build(None)
    _check_process(plain, task.name)
    given: Mapping[str, Array] = feeds_of(plain, inputs)
    with Session([task], task.name, path, how, options, budget) as session:
        ending = session.search(until)
        outcomes = session.settled()
        as_written = program.usual is not None
        worth = _any_best(outcomes) if as_written else improved(outcomes)
        chosen, compared = kept(worth, build, given)
        if as_written and compared is not None:
            outcomes = [_of_comparison(o, compared) for o in outcomes]
            chosen = outcomes if chosen else []
        session.choose(chosen)
        session.end()
        return session.result(ending, outcomes, chosen, compared)


def _check_process(executable: Executable, name: str) -> None:
    """Raise UnsupportedError for code that the processes that measure it could not run."""
    found = process_functions([executable.model.objects])
    if found:
        raise UnsupportedError(
            f"it calls functions of this process: {', '.join(found)}; schedules are measured in "
            "another one",
            where=f"tune {name}",
            hint="tune it with an expression, or with LLVM's text (hardware_intrinsic(..., "
            "llvm=text)), in the place of the call, and write the schedule found for the call",
        )


def _any_best(outcomes: Sequence[TaskOutcome]) -> list[TaskOutcome]:
    """The outcomes with any measured schedule, even if the best is the default of its space."""
    ok = [o for o in outcomes if o.best is not None and o.default is not None]
    return [o for o in ok if o.best and o.best.measurement.seconds < inf]


def _of_comparison(o: TaskOutcome, compared: NetworkTimes) -> TaskOutcome:
    """The outcome with the compared times of the program as written and with the best schedule."""
    if o.best is None or o.default is None:
        return o
    before, after = (
        Measurement(Status.OK, (seconds,))
        for seconds in (compared.before, compared.after)
    )
    best = replace(o.best, measurement=after)
    default = replace(o.default, measurement=before)
    return replace(o, best=best, default=default, confidence=1.0)
