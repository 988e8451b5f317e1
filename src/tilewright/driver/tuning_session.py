"""A tuning run: its records, its runner and builder, and a `Tuning` for each of its tasks."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from importlib.util import find_spec
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final

from tilewright.base import events
from tilewright.base.arguments import expect
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArgumentError, InputError, TilewrightWarning
from tilewright.base.text import listing
from tilewright.driver.compilation import target_of
from tilewright.driver.in_network import NetworkTimes
from tilewright.driver.options import Options
from tilewright.driver.tuned import INTERRUPTED, KernelTuned, TunedModel
from tilewright.driver.version import compiler
from tilewright.loops.nodes import Kernel
from tilewright.runtime.device import HOST
from tilewright.runtime.threads import thread_count
from tilewright.targets.base import Target
from tilewright.tune.accounts import TimeAccounts
from tilewright.tune.base import (
    Budget,
    Candidate,
    Runner,
    Status,
    Task,
    Trial,
)
from tilewright.tune.building import BuildAhead
from tilewright.tune.features.bounds import CLOCK, KernelBounds
from tilewright.tune.features.facts import USUAL, Facts
from tilewright.tune.fleet.local import LocalFleet
from tilewright.tune.import_ahead import ImportAhead
from tilewright.tune.measure.builder import ProgramBuilder
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Limits, Timing
from tilewright.tune.models import MODELS, WITHOUT_FACTS
from tilewright.tune.models import make as make_model
from tilewright.tune.records.best import best
from tilewright.tune.records.columns import RecordFilter
from tilewright.tune.records.database import Records
from tilewright.tune.records.key import Key
from tilewright.tune.records.published import default_path, expect_folder
from tilewright.tune.records.rows import MARGIN, Choice, TunerRun
from tilewright.tune.scheduler import Scheduler, TuningEnd
from tilewright.tune.strategies import STRATEGIES
from tilewright.tune.tuner import FINAL, TaskOutcome, Tuning, TuningTools

SECONDS: Final = 600.0  # the limit of a run without any other limit
SURE: Final = 0.95  # required confidence that a chosen schedule is faster
# Share of the time of all kernels. A kernel that saves less is not measured again.
WORTH: Final = 0.0005
LEARNED: Final = "trees-pretrained"  # the default cost model, which needs LightGBM
INTERPOLATED: Final = "gaussian-process"  # the default without it, and of short runs
UNLEARNED: Final = "black-box"  # of devices: features of kernels are of processors
# A run of less does not pay for importing LightGBM, which takes a second, and for fitting trees.
SHORT_TRIALS: Final = 256
SHORT_SECONDS: Final = 60.0
_LOCAL: Final = "local:"  # prefix of the number of workers of a fleet on this machine


@dataclass(frozen=True, slots=True)
class How:
    """How to search and where to measure; the fields are keyword arguments of `tune`.

    method: a name in tune.strategies.STRATEGIES. cost_model: a name in tune.models.MODELS; None:
    the one that suits the length of the run, of those that are installed. fleet: a scheduler's
    address, or `local:N`. device, keys: as for FleetRunner. timing: how programs are timed; None: a
    model's kernels as in the model (caches="network", with as many bytes touched between two calls
    as in a run of the model), other programs with hot caches. realtime: programs are timed with
    real-time priority, see `tune.measure.priority`. Raises InputError for unknown names.
    """

    method: str = "evolutionary"
    cost_model: str | None = None
    fleet: str | None = None
    device: str = "cpu"
    keys: Path | None = None
    seed: int = 0
    timing: Timing | None = None
    realtime: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for what, given, known in (
            ("method", self.method, list(STRATEGIES)),
            ("cost_model", self.cost_model, list(MODELS)),
        ):
            if given is not None and given not in known:
                raise ArgumentError(
                    f"{what}={given!r}", hint=f"choose from {listing(known)}"
                )
        if self.fleet is not None and self.fleet.startswith(_LOCAL):
            count = self.fleet.removeprefix(_LOCAL)
            if not count.isdecimal() or not int(count):
                raise ArgumentError(
                    f"fleet={self.fleet!r}", hint="give a number, such as local:2"
                )


def _expect_device(how: How) -> None:
    """Raise ArgumentError for what cannot tune kernels of a device."""
    if how.fleet is not None:
        raise ArgumentError(
            f"fleet={how.fleet!r}: a fleet measures kernels of processors only",
            hint="leave it out: kernels of a device are measured on this machine",
        )
    if how.cost_model not in (None, *WITHOUT_FACTS):
        raise ArgumentError(
            f"cost_model={how.cost_model!r}: it predicts kernels of processors only",
            hint=f"choose from {listing(list(WITHOUT_FACTS))}",
        )


def budget_of(
    trials: int | None, seconds: float | None, expected_gain: float
) -> Budget:
    """When tuning ends: see `tune.base.Budget`; by default after SECONDS.

    Raises InputError for numbers that are not above 0.
    """
    expect(trials=trials, seconds=seconds, expected_gain=expected_gain)
    limited = trials is not None or seconds is not None
    return Budget(trials, seconds if limited else SECONDS, expected_gain)


def is_short(budget: Budget) -> bool:
    """Whether a run ends before a model that must be imported and fitted pays."""
    few = budget.trials is not None and budget.trials < SHORT_TRIALS
    return few or (budget.seconds is not None and budget.seconds < SHORT_SECONDS)


def records_path(given: str | Path | None) -> Path:
    """The file to record in. Raises InputError if records are off, or the folder is missing."""
    if given is not None and not isinstance(given, str | Path):
        raise InputError(f"records={given!r}", hint="give a file: tuning needs one")
    path = default_path() if given is None else Path(given)
    if path is None:
        raise InputError(
            "tuning records are off, so no measurement would be kept",
            where="TILEWRIGHT_RECORDS",
            hint="unset it, or give a file: records=, --records",
        )
    expect_folder(path)
    return path


class Session:
    """A run: its records, its runner and builder, and a Tuning for each task."""

    def __init__(
        self,
        found: Sequence[Task],
        title: str,
        path: Path,
        how: How,
        options: Options,
        budget: Budget,
        timing: Timing | None = None,
        accounts: TimeAccounts | None = None,
    ) -> None:
        """timing: the default if `how` has none. accounts: of this and other sessions."""
        self.tasks, self.title, self.path = found, title, path
        self.budget = budget
        self.timing = how.timing or timing or Timing()
        if how.realtime:
            self.timing = replace(self.timing, realtime=True)
        self.how = replace(how, timing=self.timing)
        self.options = options
        self.target: Final = target_of(options)
        if self.target.device != HOST:
            _expect_device(how)
        self.start = time.monotonic()
        self.accounts = accounts or TimeAccounts()
        self._final: TunerRun | None = None  # a candidate has one trial per run
        self._stack = ExitStack()
        # The schedules that `compile` uses when the run begins, by the keys of tasks.
        self._used: dict[str, Candidate] = {}

    def __enter__(self) -> Session:
        with ExitStack() as stack:
            self.records = stack.enter_context(Records(self.path))
            self.run = self._begun()
            runner, build = stack.enter_context(self._shop())
            name = self.cost_model()
            facts = USUAL if name in WITHOUT_FACTS else Facts.of(self.target)
            tools = TuningTools(
                runner,
                build,
                self._record,
                make_model(name, facts, self.how.seed),
                self.run.id,
                bound=_bound(self.target),
            )
            if name == LEARNED:
                ahead = ImportAhead("lightgbm")
                stack.callback(ahead.close)
                tools = replace(tools, prepare=ahead)
            self.tunings = [self._tuning(task, tools) for task in self.tasks]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def search(self, until: Callable[[], bool] | None) -> TuningEnd | str:
        """Run all rounds; return why they ended."""
        self.budget.used = sum(t.used for t in self.tunings)
        ending = Scheduler(self.tunings, self.budget, until=until).run()
        for tuning in self.tunings:
            tuning.recall()
        return INTERRUPTED if ending is TuningEnd.UNTIL else ending

    def settled(self) -> list[TaskOutcome]:
        """The outcome of each task; the best schedule is compared with the default once more."""
        saved = {t: t.task.calls * _saved(t.outcome()) for t in self.tunings}
        total = sum(t.task.calls * _default_seconds(t.outcome()) for t in self.tunings)
        for tuning, seconds in saved.items():
            if seconds > WORTH * total:
                tuning.settle()
        return [tuning.outcome() for tuning in self.tunings]

    @property
    def runs(self) -> list[TunerRun]:
        """The session's runs in the records."""
        return [run for run in (self.run, self._final) if run is not None]

    def used(self) -> list[Choice]:
        """The choices that `compile` uses for the tasks."""
        digests = [Key.parse(task.key).digest for task in self.tasks]
        rows = (self.records.choices(RecordFilter(digest=d)) for d in digests)
        return [c for row in rows for c in best(row).values()]

    def end(self, others: Sequence[TunerRun] = ()) -> None:
        """End the session's runs, and others that would be continued with them."""
        for run in (*self.runs, *others):
            self.records.end(run)

    def choose(self, chosen: Sequence[TaskOutcome]) -> None:
        """Make `compile` use these outcomes.

        The schedules that it used so far were measured again. One that is no longer faster than the
        default, or that is replaced, is withdrawn, however much it gained when it was chosen.
        """
        for tuning in self.tunings:
            task = tuning.task
            replaced = any(o.task is task for o in chosen)
            if task.key in self._used and (replaced or self._is_outdated(tuning)):
                self.records.withdraw(self.run, task.key, task.name)
        for o in chosen:
            assert o.best is not None and o.default is not None
            seconds, default = o.best.measurement.seconds, o.default.measurement.seconds
            key, name = o.task.key, o.task.name
            self.records.choose(self.run, key, name, o.best.candidate, seconds, default)

    def _is_outdated(self, tuning: Tuning) -> bool:
        """Whether the schedule that `compile` used so far failed, or the default was faster."""
        used = self._used[tuning.task.key]
        if tuning.programs.find(used) is None:
            return True
        default = tuning.outcome().default
        found = tuning.trial(used)
        if default is None or found is None:
            return False
        lost = found.measurement.status is Status.LOST
        return not lost and found.measurement.seconds > default.measurement.seconds

    def result(
        self,
        ending: TuningEnd | str,
        outcomes: Sequence[TaskOutcome],
        chosen: Sequence[TaskOutcome],
        compared: NetworkTimes | None,
    ) -> TunedModel:
        """The result for the caller."""
        times: Mapping[str, tuple[float, float]] = {}
        if compared is not None:
            times = compared.kernels
        kernels = [
            KernelTuned.of(o, _why(o, chosen, times), times.get(o.task.key))
            for o in outcomes
        ]
        failed: Counter[str] = Counter()
        for o in outcomes:
            failed.update({str(status): n for status, n in o.failed.items()})
        better = compared if chosen else None
        return TunedModel(
            self.title,
            kernels,
            ending,
            sum(o.trials for o in outcomes),
            failed,
            time.monotonic() - self.start,
            dict(self.accounts.seconds),
            self.accounts.overhead,
            str(self.path),
            None if better is None else better.before,
            None if better is None else better.after,
        )

    def _begun(self) -> TunerRun:
        keys = "\n".join(sorted(task.key for task in self.tasks))
        how = replace(self.how, fleet=None, keys=None)  # where, not how
        # Times of another compiler version or another method do not belong to this run.
        decisive = hashlib.sha256(f"{keys}\n{compiler()}\n{how}".encode())
        settings = f"{how.method} seed={how.seed} {decisive.hexdigest()[:16]}"
        found = self.records.resume(self.title, settings)
        if found is not None:
            events.emit("tune-resumed", model=self.title, run=found.id)
            return found
        return self.records.begin(self.title, settings, compiler())

    @contextmanager
    def _shop(self) -> Iterator[tuple[Runner, BuildAhead]]:
        """The runner and the builder."""
        threads = thread_count(self.options.threads)
        with ExitStack() as stack:
            how, fleet = self.how, self.how.fleet
            if fleet is None:
                local = LocalRunner(threads, timing=self.timing, limits=how.limits)
                stack.callback(local.close)
                yield local, BuildAhead(ProgramBuilder(local.spare))
                return
            if fleet.startswith(_LOCAL):
                count = int(fleet.removeprefix(_LOCAL))
                made = LocalFleet(count, threads, how.device)
                fleet = stack.enter_context(made).address
            from tilewright.tune.fleet.runner import FleetRunner

            runner = FleetRunner(
                fleet,
                how.device,
                threads=threads,
                keys=how.keys,
                timing=self.timing,
                limits=how.limits,
            )
            stack.callback(runner.close)
            yield runner, BuildAhead(ProgramBuilder())

    def cost_model(self) -> str:
        """The name of the cost model; by default the best that is installed, but for short runs."""
        if self.how.cost_model is not None:
            return self.how.cost_model
        if self.target.device != HOST:
            return UNLEARNED
        if is_short(self.budget):
            return INTERPOLATED
        if find_spec("lightgbm") is not None:
            return LEARNED
        warnings.warn(
            "tuning uses the cost model 'gaussian-process': install 'tilewright[tune]' for one "
            "that also learns from other kernels",
            TilewrightWarning,
            stacklevel=2,
        )
        return INTERPOLATED

    def _tuning(self, task: Task, tools: TuningTools) -> Tuning:
        digest = Key.parse(task.key).digest
        rows = self.records.records(RecordFilter(digest=digest))
        used = best(self.records.choices(RecordFilter(digest=digest))).get(digest)
        if used is not None and used.candidate is not None:
            self._used[task.key] = used.candidate
        return Tuning(
            task,
            tools,
            by=self.how.method,
            seeds=[c for key, c in self._used.items() if key == task.key],
            earlier=[r.trial for r in rows if r.run.id == self.run.id],
            known=[r.trial for r in rows if r.run.id != self.run.id],
            seed=self.how.seed,
            accounts=self.accounts,
        )

    def _record(self, task: Task, trial: Trial) -> None:
        run = self.run
        if trial.strategy == FINAL:
            if self._final is None:
                self._final = self.records.begin(self.title, FINAL, compiler())
            run = self._final
        self.records.add(run, task.key, task.name, trial)


def _bound(target: Target) -> Callable[[Kernel, float], str]:
    """What says what bounds a kernel; nothing of kernels of a device, whose facts differ."""
    if target.device != HOST:
        return lambda kernel, seconds: ""
    machine: Any = getattr(target, "machine", None)
    clock = getattr(machine, "clock", CLOCK)
    return KernelBounds(Facts.of(target), clock, target.open_costs.call_ns).of


def _default_seconds(o: TaskOutcome) -> float:
    """The seconds of a call with the default schedule; 0 if unknown."""
    seconds = inf if o.default is None else o.default.measurement.seconds
    return seconds if isfinite(seconds) else 0.0


def _saved(o: TaskOutcome) -> float:
    """The seconds that the best schedule saves per call."""
    return _default_seconds(o) * (1 - 1 / o.gain)


def improved(outcomes: Sequence[TaskOutcome]) -> list[TaskOutcome]:
    """The outcomes whose best schedule is significantly faster in isolation."""
    return [o for o in outcomes if o.gain >= MARGIN and o.confidence >= SURE]


def _why(
    o: TaskOutcome,
    chosen: Sequence[TaskOutcome],
    times: Mapping[str, tuple[float, float]],
) -> str:
    """Whether the best schedule of a kernel is used, and if not, why."""
    if any(o is c for c in chosen):
        return "yes"
    if not o.trials:
        return "no: not measured"
    if o.best is None:
        reason = "" if o.default is None else o.default.measurement.reason
        return (
            f"no: every trial failed: {reason}" if reason else "no: every trial failed"
        )
    if o.gain < MARGIN:
        return "no: the default is as fast"
    if o.confidence < SURE:
        return "no: not significantly faster"
    before, after = times.get(o.task.key, (0.0, 0.0))
    if after >= before:
        return "no: not faster in the model"
    return "no: the model is not significantly faster"
