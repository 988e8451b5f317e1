"""`tune()`: searches for faster schedules of a model's kernels, and records what it measures.

The steps: all alternatives of the plan's decisions are measured, and those that make the model
faster are chosen. The kernels that the model then has become tasks. Rounds of trials go to the
tasks from which the model gains most. The best schedule of each kernel is measured again, against
its default. Those that also make the model faster are chosen, and `compile` uses them from then on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from tilewright.base.arguments import expect, shown
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArgumentError, InputError
from tilewright.base.text import listing
from tilewright.driver.decision_tasks import decision_tasks
from tilewright.driver.in_network import (
    NetworkTimes,
    choices_file,
    compared,
    kept,
    seconds_of,
)
from tilewright.driver.options import Options
from tilewright.driver.random_inputs import random_array
from tilewright.driver.same_results import Array, expect_equal
from tilewright.driver.tasks import tasks
from tilewright.driver.tuned import KernelTuned, TunedModel
from tilewright.driver.tuning_session import (
    How,
    Session,
    budget_of,
    improved,
    records_path,
)
from tilewright.runtime.executable import Executable
from tilewright.tune.accounts import TimeAccounts
from tilewright.tune.base import Budget, Task
from tilewright.tune.measure.options import Timing
from tilewright.tune.records.rows import Choice, TunerRun
from tilewright.tune.tuner import TaskOutcome

if TYPE_CHECKING:
    from tilewright.driver.keywords import CompileOptions, TuneOptions

__all__ = ["How", "feeds_of", "tune"]

# The speedup that a model must have with high confidence for its schedules to be chosen.
WORTHWHILE: Final = 1.005
# Of a run, at most, for the plan's decisions. They decide which kernels there are.
DECISIONS_SHARE: Final = 0.25


def tune(
    source: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    trials: int | None = None,
    seconds: float | None = None,
    expected_gain: float = 0.0,
    kernels: Sequence[str] = (),
    feeds: Mapping[str, Array] | None = None,
    name: str = "",
    records: str | Path | None = None,
    until: Callable[[], bool] | None = None,
    how: How | None = None,
    **options: Unpack[TuneOptions],
) -> TunedModel:
    """Search for faster schedules of a model's kernels; `compile` uses those that are chosen.

    source, example_inputs, dims, options: as for `compile`. trials, seconds, expected_gain: when to
    end (see tune.base.Budget); by default after ten minutes. kernels: tune only these, named as in
    profiles. feeds: inputs for comparing the whole model; by default example_inputs, or random
    ones. name: of the model in the records. records: the file; by default the user's. until: called
    before each round; True ends tuning. A run of the same model and settings that was killed
    continues. Every measurement is recorded at once, and so is not lost by an error.

    Raises InputError for a budget that is not above 0, for unknown names, and if records are off;
    VerifyError if tuned schedules change the model's results; and the errors of `compile`.
    """
    expect(dims=dims, kernels=kernels, name=name, until=until)
    expect(example_inputs=example_inputs, feeds=feeds)
    how = _how(how)
    budget = budget_of(trials, seconds, expected_gain)
    path = records_path(records)
    plain: CompileOptions = {**options, "records": False}
    found = _wanted(tasks(source, example_inputs, dims=dims, **plain), kernels)
    title = name or _name(source)

    def compiled(choices: Path | None) -> Executable:
        from tilewright.driver.compile import compile

        of = False if choices is None else choices
        chosen: CompileOptions = {**options, "records": of}
        made = compile(source, example_inputs, dims=dims, **chosen)
        return made if isinstance(made, Executable) else made.specialized(feeds or {})

    default = compiled(None)
    given = feeds or feeds_of(default, example_inputs)
    # Errors in the inputs are reported before the search, not after it.
    default(dict(given))
    # In a run of the model, as many bytes are touched between two calls of a kernel.
    timing = Timing("network", default.peak_bytes)
    run = _ModelRun(title, path, how, Options.of(plain), timing, until, compiled, given)
    made = [] if kernels else decision_tasks(source, example_inputs, dims=dims, **plain)
    first = run.decisions(made, budget)
    if first is not None and first.used:
        with choices_file(first.used) as file:
            decided: CompileOptions = {**plain, "records": file}
            found = tasks(source, example_inputs, dims=dims, **decided)
    return run.kernels(found, budget, first)


def _how(given: Any) -> How:
    """The settings, by default the usual ones. Raises ArgumentError for anything else."""
    if not isinstance(given, How | None):
        raise ArgumentError(f"how={shown(given)}", hint="give a tw.tune.How")
    return given or How()


@dataclass(frozen=True, slots=True)
class _Decided:
    """What was found about the plan's decisions.

    used: the choices that `compile` uses. runs: to be ended with the whole run. spent: of the
    budget's trials and seconds.
    """

    found: TunedModel
    used: Sequence[Choice]
    runs: Sequence[TunerRun]
    spent: tuple[int, float]


@dataclass(frozen=True)
class _ModelRun:
    """A run of `tune`: first about the plan's decisions, then about the schedules of the
    kernels that the model has with these."""

    title: str
    path: Path
    how: How
    options: Options
    timing: Timing
    until: Callable[[], bool] | None
    compiled: Callable[[Path | None], Executable]
    feeds: Mapping[str, Array]
    accounts: TimeAccounts = field(default_factory=TimeAccounts)

    def decisions(self, found: Sequence[Task], whole: Budget) -> _Decided | None:
        """All alternatives of each site, with their default schedules, as far as a part of the
        whole budget goes; None if there are none, or no trial for any."""
        budget = _part(whole)
        if not found or budget.trials == 0:
            return None
        how = replace(self.how, method="exhaustive", cost_model="black-box")
        start = time.monotonic()
        with self._session(found, how, budget) as session:
            ending = session.search(self.until)
            spent = budget.used, time.monotonic() - start
            outcomes = session.settled()
            chosen, compared = self._kept(outcomes, ())
            session.choose(chosen)
            made = session.result(ending, outcomes, chosen, compared)
            kernels = [
                _with_alternatives(k, o)
                for k, o in zip(made.kernels, outcomes, strict=True)
            ]
            made = replace(made, kernels=kernels)
            return _Decided(made, session.used(), session.runs, spent)

    def kernels(
        self, found: Sequence[Task], whole: Budget, first: _Decided | None
    ) -> TunedModel:
        """The schedules of all kernels, and the result of the whole run."""
        budget = whole if first is None else _rest(whole, first.spent)
        base = () if first is None else first.used
        with self._session(found, self.how, budget) as session:
            ending = session.search(self.until)
            outcomes = session.settled()
            chosen, compared = self._kept(outcomes, base)
            session.choose(chosen)
            session.end(() if first is None else first.runs)
            made = session.result(ending, outcomes, chosen, compared)
        if first is None:
            return made
        if base:
            made = self._against_default(made, base, chosen)
        return _joined(first.found, made)

    def _session(self, found: Sequence[Task], how: How, budget: Budget) -> Session:
        given = self.title, self.path, how, self.options, budget
        return Session(found, *given, self.timing, self.accounts)

    def _kept(
        self, outcomes: Sequence[TaskOutcome], base: Sequence[Choice]
    ) -> tuple[list[TaskOutcome], NetworkTimes | None]:
        better = improved(outcomes)
        return kept(better, self.compiled, self.feeds, WORTHWHILE, base)

    def _against_default(
        self, made: TunedModel, base: Sequence[Choice], chosen: Sequence[TaskOutcome]
    ) -> TunedModel:
        """The result with the times of the model without and with all that `compile` uses."""
        with choices_file(base, chosen) as file:
            both = self.compiled(None), self.compiled(file)
        expect_equal(*both, dict(self.feeds))
        times = compared(both, lambda exe: seconds_of(exe, self.feeds))
        return replace(made, before=times.before, after=times.after)


def _part(whole: Budget) -> Budget:
    """The part of a budget that the plan's decisions may take."""
    trials, seconds = whole.trials, whole.seconds
    return Budget(
        None if trials is None else int(DECISIONS_SHARE * trials),
        None if seconds is None else DECISIONS_SHARE * seconds,
        whole.expected_gain,
    )


def _rest(whole: Budget, spent: tuple[int, float]) -> Budget:
    """What is left of a budget: most of it, however much the rest took."""
    trials, seconds = whole.trials, whole.seconds
    if trials is not None:
        trials -= spent[0]
    if seconds is not None:
        seconds = max(seconds - spent[1], (1 - DECISIONS_SHARE) * seconds)
    return Budget(trials, seconds, whole.expected_gain)


def _with_alternatives(found: KernelTuned, o: TaskOutcome) -> KernelTuned:
    """The result for a site, with the names of its alternatives. Its time is that of
    kernels that have results of their own, and it moves no bytes besides theirs."""
    default = o.task.space.default().sketch
    best = default if o.best is None else o.best.candidate.sketch
    names = default if best == default else f"{default} -> {best}"
    used = f"{found.used} ({names})"
    return replace(found, used=used, operations=0, bytes_moved=0, bound="")


def _joined(decisions: TunedModel, kernels: TunedModel) -> TunedModel:
    """The result of a whole run; the times of the model are those of its last comparison."""
    failed = Counter(decisions.failed)
    failed.update(kernels.failed)
    return replace(
        kernels,
        kernels=[*decisions.kernels, *kernels.kernels],
        trials=decisions.trials + kernels.trials,
        failed=failed,
        seconds=decisions.seconds + kernels.seconds,
    )


def _wanted(found: list[Task], kernels: Sequence[str]) -> list[Task]:
    """The tasks of these kernels; all if none is given. Raises InputError for an unknown name."""
    names = {name: task for task in found for name in (task.name, *task.kernels)}
    for name in kernels:
        if name not in names:
            raise ArgumentError(
                f"there is no kernel {name!r}",
                where="tune",
                hint=f"the kernels are {listing(list(names))}",
            )
    wanted = [names[name] for name in kernels] if kernels else found
    if not wanted:
        raise InputError(
            "the model has no kernel whose schedule has parameters", where="tune"
        )
    return list(dict.fromkeys(wanted))


def _name(source: Any) -> str:
    if isinstance(source, str | Path):
        return str(Path(source).name)
    return str(getattr(source, "name", "") or type(source).__name__)


def feeds_of(exe: Executable, example_inputs: Sequence[Any]) -> dict[str, Array]:
    """Inputs by name: the examples, or random ones. Raises InputError if there can be none."""
    import numpy as np

    from tilewright.base.dtypes import ALL

    if example_inputs:
        names = [t.name for t in exe.inputs]
        return dict(zip(names, map(np.asarray, example_inputs), strict=False))
    dtypes = {d.name: d for d in ALL}
    found = {}
    for t in exe.inputs:
        dtype = dtypes.get(t.dtype)
        if dtype is None or dtype.is_string or t.shape is None or None in t.shape:
            raise InputError(
                "random values cannot be generated for this input",
                where=f"input {t.name!r}",
                hint="give feeds={name: array}",
            )
        found[t.name] = random_array(t.name, dtype, [n or 0 for n in t.shape], 0)
    return found
