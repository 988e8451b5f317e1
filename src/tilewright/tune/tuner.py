"""Tuning of one task in rounds: propose, schedule, build, measure, record, learn.

A `Tuning` runs one round at a time, so that a scheduler can choose between several. What it needs
from the machine and the compiler above is passed in as `TuningTools`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Final

from tilewright.base import collector, events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, ScheduleError
from tilewright.loops.nodes import Kernel
from tilewright.tune.accounts import MEASURE, TimeAccounts
from tilewright.tune.base import (
    Candidate,
    CostModel,
    Job,
    Measurement,
    Runner,
    Sample,
    Status,
    Task,
    Trial,
)
from tilewright.tune.building import Build, Built, Numbered, build_here
from tilewright.tune.gain import (
    confidence,
    expected_gain,
    is_ahead,
    running_best,
)
from tilewright.tune.strategies import (
    ConfidenceBounds,
    ProgramMaker,
    Proposer,
    Setup,
    strategy,
)

BATCH: Final = 16  # trials per round
REFUSALS: Final = 256  # consecutive refusals that end a task
SHARE: Final = 0.05  # of the time for building and measuring, spent on search
LEARNING: Final = 0.03  # of that time, spent on fitting the model
MOST_EFFORT: Final = 64  # schedules per trial
# Used until the cost of a schedule is known, and without a model.
FIRST_EFFORT: Final = 2
# Passes of the final comparison: the fewest that allow 95% confidence between two finalists when
# one pass goes the other way (`gain.confidence`).
PASSES: Final = 8
HOPELESS: Final = 3  # passes after which the final comparison may end early
KNOWN: Final = 3  # candidates of other runs to measure again
# The strategy name of trials that compare the best with the default again.
FINAL: Final = "final"


def _keep_nothing(task: Task, trial: Trial) -> None:
    return None


def _nothing() -> None:
    return None


def _unknown(kernel: Kernel, seconds: float) -> str:
    return ""


@dataclass(frozen=True, eq=False, slots=True)
class TuningTools:
    """The dependencies of tuning.

    record: called with each trial as soon as it is finished. model: shared by all tasks. machine:
    the name under which the model learns. prepare: called before the model is fitted; it imports
    what that takes. bound: what bounds a program that takes so many seconds, in words.
    """

    runner: Runner
    build: Build = build_here
    record: Callable[[Task, Trial], None] = _keep_nothing
    model: CostModel | None = None
    machine: str = ""
    prepare: Callable[[], None] = _nothing
    bound: Callable[[Kernel, float], str] = _unknown


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The state of tuning a task, at its end or earlier.

    best: the fastest trial; the default's if nothing was faster. default: the first trial; None
    before it. confidence: that the best is faster, see `gain.confidence`; 0 before the final
    comparison. curve: (trial number, seconds) of each new best. failed: number of failed trials by
    status. expected_gain: see `gain.expected_gain`. spent: seconds by activity. overhead: the share
    of them spent neither building nor measuring. bound: what bounds the best, in words.
    """

    task: Task
    best: Trial | None
    default: Trial | None
    confidence: float
    trials: int
    curve: tuple[tuple[int, float], ...]
    failed: Mapping[Status, int]
    expected_gain: float
    spent: Mapping[str, float]
    overhead: float
    bound: str = ""

    @property
    def gain(self) -> float:
        """The speedup of the best over the default; 1 if unknown."""
        if self.best is None or self.default is None:
            return 1.0
        best, default = self.best.measurement, self.default.measurement
        return 1.0 if default.seconds == inf else default.seconds / best.seconds


class Tuning:
    """A task being tuned.

    earlier: trials of this run before it was interrupted. They are not measured again, and with the
    same seed and batch size the run continues as if it had not stopped; those it no longer proposes
    are still learned from. known: trials of other runs: the fastest are measured again, the others
    only learned from. seeds: candidates to measure after the default and those. effort: schedules
    that a strategy may make per trial. None: as many as fit in 5% of the time for building and
    measuring, and the model is fitted only while fitting has taken less than 3% of it; a resumed
    run may then differ from an uninterrupted one.
    """

    def __init__(
        self,
        task: Task,
        tools: TuningTools,
        *,
        by: str = "evolutionary",
        seeds: Sequence[Candidate] = (),
        earlier: Sequence[Trial] = (),
        known: Sequence[Trial] = (),
        seed: int = 0,
        effort: int | None = None,
        accounts: TimeAccounts | None = None,
    ) -> None:
        self.task: Final = task
        self.trials: list[Trial] = []
        self.bests: list[float] = []  # after each round
        self.through = False
        self.accounts: Final = accounts or TimeAccounts()
        self._own: Final = self.accounts.part()
        self._tools: Final = tools
        self.programs: Final = ProgramMaker(task)
        again = _fastest(known)
        foresight = ConfidenceBounds(self.programs, tools.model)
        self._adapts: Final = effort is None and tools.model is not None
        first = FIRST_EFFORT if effort is None else effort
        setup = Setup(task.space, foresight, [*again, *seeds], seed, first)
        self._strategy: Final[Proposer] = strategy(by, setup)
        self._earlier: Final = {
            t.candidate.key: t for t in earlier if t.strategy != FINAL
        }
        self._settled: dict[str, Trial] = {}
        self._unlearned: list[Sample] = []
        self._refused = 0
        self._least = inf
        measured = {task.space.default(), *again}
        self._learn([t for t in known if t.candidate not in measured])

    # ------------------------------------------------------------------------- a round

    def step(self, count: int = BATCH) -> list[Trial]:
        """Run one round of at most `count` trials; returns them in proposal order.

        Returns none and sets `through` when the strategy has no more candidates, or too many in a
        row were refused. If the round is interrupted, the trials finished so far are already
        recorded.
        """
        if self._adapts:
            searched = self._strategy.rounds
            self._strategy.effort = (
                self._affordable(count) if searched else self._first()
            )
        with self._thinking("search"):
            batch = self._strategy.propose(count)
        if not batch or self._refused >= REFUSALS:
            self.through = True
            return []
        made: dict[int, Trial] = {}
        points = list(self._scheduled(batch, made))
        rest = self._left_behind() if points else []
        for number, measurement in self._measured(points):
            made[number] = self._finished(batch[number], measurement)
        trials = [made[n] for n in sorted(made)]
        self.trials += [*trials, *rest]  # the default is always first
        self._count_refusals(trials)
        self._learn(trials)
        self.bests.append(self.seconds)
        return trials

    @contextmanager
    def _thinking(self, on: str) -> Iterator[None]:
        """Charge the time to an activity that makes many objects and little garbage.

        Programs have no cycles, so that a collection finds nothing: under a collector that runs, a
        third of the time of a search is collections.
        """
        with self._own.spending(on), collector.paused():
            yield

    def _first(self) -> int:
        """The schedules per trial of a task's first search: FIRST_EFFORT, unless the searches of
        the whole run took more than SHARE of its time for building and measuring."""
        spent = self.accounts.seconds
        over = spent.get("search", 0.0) > SHARE * spent.get(MEASURE, 0.0)
        return 1 if over else FIRST_EFFORT

    def _affordable(self, count: int) -> int:
        """The schedules per trial after which this task's search will have taken SHARE of its time
        for building and measuring, once `count` more trials are measured.

        Precondition: a round has searched, so the time of a schedule is known.
        """
        trial = self._own.seconds.get(MEASURE, 0.0) / max(1, self.used)
        searched = self._own.seconds.get("search", 0.0)
        schedule = searched / max(1, self.programs.made)
        left = SHARE * trial * (self.used + count) - searched
        if not schedule:
            return 1
        return max(1, min(MOST_EFFORT, round(left / (count * schedule))))

    def _scheduled(
        self, batch: Sequence[Candidate], made: dict[int, Trial]
    ) -> Iterator[Numbered]:
        """Yield the points to measure; trials made earlier and refused candidates go to `made`."""
        for number, candidate in enumerate(batch):
            before = self._earlier.pop(candidate.key, None)
            if before is not None:
                made[number] = before
                continue
            try:
                with self._thinking("schedule"):
                    point = self.programs.point(candidate)
            except ScheduleError as error:
                refused = Measurement(Status.REFUSED, reason=str(error))
                made[number] = self._finished(candidate, refused)
            else:
                yield number, point

    def recall(self) -> None:
        """Add the earlier trials that no round proposed; does nothing before the first round."""
        if self.trials:
            self.trials += self._left_behind()

    def _left_behind(self) -> list[Trial]:
        """Learn from the earlier trials left over, once the run deviates from its former course."""
        rest = list(self._earlier.values())
        self._earlier.clear()
        if rest:
            self._learn(rest)
        return rest

    def _measured(
        self, points: Sequence[Numbered]
    ) -> Iterator[tuple[int, Measurement]]:
        """Yield measurements as they finish, including those of failed builds."""
        if points:
            built = self._tools.build(self.task, points)
            yield from self._answers(built, {number for number, _ in points})

    def _answers(
        self, built: Iterable[Built], missing: set[int]
    ) -> Iterator[tuple[int, Measurement]]:
        """Measure jobs; yields one measurement per number in `missing`."""
        unbuilt: deque[tuple[int, Measurement]] = deque()

        def jobs() -> Iterator[Job]:
            for number, made in built:
                if isinstance(made, Measurement):
                    unbuilt.append((number, made))
                else:
                    yield made

        results = self._tools.runner.measure(jobs())
        while missing:
            with self._own.spending(MEASURE):
                found = next(results, None)
            arrived = list(unbuilt) + ([] if found is None else [found])
            unbuilt.clear()
            if not arrived:
                reason = "the runner returned no measurement"
                arrived = [
                    (n, Measurement(Status.LOST, reason=reason)) for n in missing
                ]
            missing.difference_update(number for number, _ in arrived)
            yield from arrived

    def _finished(self, candidate: Candidate, measurement: Measurement) -> Trial:
        predicted = self._strategy.setup.foresight
        expected = None
        if predicted is not None and measurement.status is not Status.REFUSED:
            with self._thinking("search"):
                expected = predicted.predicted(candidate)
        trial = Trial(candidate, measurement, expected, self._strategy.name)
        with self._own.spending("record"):
            self._tools.record(self.task, trial)
        self._announce(trial)
        return trial

    def _announce(self, trial: Trial) -> None:
        measurement = trial.measurement
        if measurement.seconds < self._least:
            before, self._least = self._least, measurement.seconds
            events.emit(
                "task-improved",
                task=self.task.name,
                seconds=self._least,
                before=before,
            )
        events.emit(
            "trial",
            task=self.task.name,
            candidate=trial.candidate.key,
            status=str(measurement.status),
            seconds=measurement.seconds,
            reason=measurement.reason,
            predicted=trial.predicted,
            strategy=trial.strategy,
        )

    def _learn(self, trials: Sequence[Trial]) -> None:
        if self._tools.model is not None:
            with self._thinking("learn"):
                self._unlearned += self._samples(trials)
        # A single sample, such as the default, cannot rank anything: fitting would be wasted.
        if len(self._unlearned) > 1 and self._may_learn():
            self._fit()
        with self._thinking("learn"):
            self._strategy.tell(trials)

    def _fit(self) -> None:
        model = self._tools.model
        assert model is not None
        with self._own.spending("import"):
            self._tools.prepare()
        with self._thinking("learn"):
            model.update(self._unlearned)
        self._unlearned = []

    def _may_learn(self) -> bool:
        """Whether fitting will have taken little time, if it takes as long as it did at most so
        far; otherwise samples wait. What is known before the first measurement is always learned.
        """
        if not self._adapts:
            return True
        accounts = self.accounts
        measuring = accounts.seconds.get(MEASURE, 0.0)
        learning = accounts.seconds.get("learn", 0.0) + accounts.longest.get("learn", 0)
        return not measuring or learning <= LEARNING * measuring

    def _samples(self, trials: Iterable[Trial]) -> Iterator[Sample]:
        """The training samples of trials; candidates without a program or a build are left out."""
        for trial in trials:
            program = self.programs.find(trial.candidate)
            if program is not None and trial.measurement.status is not Status.BUILD:
                taken = trial.measurement.seconds
                machine = self._tools.machine
                yield Sample(self.task.key, program.kernel, taken, machine)

    def _count_refusals(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            refused = trial.measurement.status is Status.REFUSED
            self._refused = self._refused + 1 if refused else 0

    # ------------------------------------------------------------------------- what it came to

    @property
    def used(self) -> int:
        """Trials that count against a budget: all except refused ones."""
        return sum(t.measurement.status is not Status.REFUSED for t in self.trials)

    @property
    def best(self) -> Trial | None:
        """The fastest trial, the first of equals; None if all failed."""
        ok = [t for t in self.trials if t.measurement.seconds < inf]
        return min(ok, key=_seconds, default=None)

    def trial(self, candidate: Candidate) -> Trial | None:
        """The trial of a candidate, preferably from the final comparison; None if there is none."""
        made = (t for t in self.trials if t.candidate == candidate)
        return self._settled.get(candidate.key) or next(made, None)

    @property
    def seconds(self) -> float:
        """Seconds per call of the best trial; infinite if all failed."""
        return min(map(_seconds, self.trials), default=inf)

    @property
    def expected_gain(self) -> float:
        """The share of its time that the next trials are expected to save; 0 if exhausted."""
        if self.through:
            return 0.0
        return expected_gain(running_best([_seconds(t) for t in self.trials]))

    def settle(self, finalists: int = 2, passes: int = PASSES) -> None:
        """Measure the default and the fastest few again, interleaved, and rank them by these times.

        The fastest of many trials is partly lucky, so only the new times count. A pass runs one
        process per finalist, one after the other, in alternating order; the median of a process
        counts as one time, because a disturbance affects all rounds of a process. Passes end early
        if no finalist is ahead of the default; this never inflates the confidence. Does nothing
        with fewer than two to compare. Raises InputError before the first step.
        """
        if not self.trials:
            raise InputError(
                "nothing has been measured yet", where="tune", hint="call step first"
            )
        ranked = sorted(self.trials, key=_seconds)[:finalists]
        chosen = {t.candidate.key: t for t in [self.trials[0], *ranked]}
        compared = [t.candidate for t in chosen.values() if _seconds(t) < inf]
        if len(compared) < 2:
            return
        found = self._compare(compared, passes)
        for candidate, passed in zip(compared, found, strict=True):
            trial = Trial(candidate, _passes(passed), strategy=FINAL)
            self._settled[candidate.key] = trial
            with self._own.spending("record"):
                self._tools.record(self.task, trial)

    def _compare(
        self, compared: Sequence[Candidate], passes: int
    ) -> list[list[Measurement]]:
        """The measurements of each candidate, one per pass; the first candidate is the default."""
        found: list[list[Measurement]] = [[] for _ in compared]
        points = [(n, self.programs.point(c)) for n, c in enumerate(compared)]
        with self._own.spending(MEASURE):
            built = list(self._tools.build(self.task, points))
        for n in range(passes):
            turn = built[:: -1 if n % 2 else 1]
            for number, measurement in self._once_more_if_lost(turn).items():
                found[number].append(measurement)
            default, *others = ([m.seconds for m in one] for one in found)
            if n + 1 >= HOPELESS and not any(is_ahead(o, default) for o in others):
                break
        return found

    def _once_more_if_lost(self, built: Sequence[Built]) -> dict[int, Measurement]:
        """The measurement of each; a second one where the first was lost, as its worker may have
        ended for a reason of its own."""
        found = dict(self._answers(built, {number for number, _ in built}))
        lost = {n for n, m in found.items() if m.status is Status.LOST}
        if lost:
            again = [(n, made) for n, made in built if n in lost]
            found.update(self._answers(again, lost))
        return found

    def outcome(self) -> TaskOutcome:
        """The state so far."""
        best, default = self._compared()
        failed = Counter(t.measurement.status for t in self.trials)
        del failed[Status.OK]
        return TaskOutcome(
            self.task,
            best,
            default,
            self._confidence(best, default),
            len(self.trials),
            tuple(self._curve()),
            dict(failed),
            self.expected_gain,
            dict(self.accounts.seconds),
            self.accounts.overhead,
            self.bound(best),
        )

    def bound(self, trial: Trial | None) -> str:
        """What bounds the program of a trial, in words; empty if that is not known."""
        program = None if trial is None else self.programs.find(trial.candidate)
        if trial is None or program is None or _seconds(trial) == inf:
            return ""
        return self._tools.bound(program.kernel, _seconds(trial))

    def _confidence(self, best: Trial | None, default: Trial | None) -> float:
        """The confidence that the best is faster; 0 before the final comparison, and if the default
        failed in it."""
        if not self._settled or best is None or default is None or best is default:
            return 0.0
        if _seconds(default) == inf:
            return 0.0
        among = len(self._settled) - 1
        return confidence(best.measurement.rounds, default.measurement.rounds, among)

    def _compared(self) -> tuple[Trial | None, Trial | None]:
        """The best and the default, from the final comparison if there was one."""
        if not self.trials:
            return None, None
        default = self.trials[0]
        if not self._settled:
            return self.best, default
        default = self._settled.get(default.candidate.key, default)
        ranked = sorted(self._settled.values(), key=_seconds)
        best = ranked[0]
        return (default if _seconds(default) <= _seconds(best) else best), default

    def _curve(self) -> Iterator[tuple[int, float]]:
        least = inf
        for number, trial in enumerate(self.trials, 1):
            if _seconds(trial) < least:
                least = _seconds(trial)
                yield number, least


def _fastest(known: Sequence[Trial]) -> list[Candidate]:
    ok = [t for t in known if t.measurement.seconds < inf]
    ranked = sorted(ok, key=_seconds)[:KNOWN]
    return list(dict.fromkeys(t.candidate for t in ranked))


def _seconds(trial: Trial) -> float:
    return trial.measurement.seconds


def _passes(found: Sequence[Measurement]) -> Measurement:
    """Merge measurements into one, with a time for each; the first failure, if there is one."""
    for measurement in found:
        if measurement.status is not Status.OK:
            return measurement
    first = found[0]
    return replace(
        first,
        rounds=tuple(m.seconds for m in found),
        noise=max(m.noise for m in found),
        build_seconds=first.build_seconds,
        run_seconds=sum(m.run_seconds for m in found),
    )
