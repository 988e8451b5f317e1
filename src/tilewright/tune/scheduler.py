"""Tuning of several tasks: each round goes to the task with the largest expected gain.

The gradient of the network's time, as in Ansor (Zheng et al., OSDI 2020, section 6) and
MetaSchedule: a task's last rounds show how fast its time falls, and two estimates how far it can.
There, what similar tasks promise counts forever; here it fades while the task does not gain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import Any, Final

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.search.result import at_least_one
from tilewright.tune.accounts import Clock
from tilewright.tune.base import Budget
from tilewright.tune.tuner import BATCH, TaskOutcome, Tuning

# The weight of the gain of the last rounds; the rest goes to the estimate.
BACKWARD: Final = 0.2
# A task is assumed to reach this multiple of the time per operation of similar tasks.
SIMILAR: Final = 2.0
WINDOW: Final = 3  # rounds
# Rounds without a gain that halve what is expected from similar tasks. What bounds them may not be
# what bounds this one: a product with a single row waits for memory, however it is scheduled.
PATIENCE: Final = 4
# An earlier round was as good as the best if its time was at most this share above the best's.
CREEP: Final = 0.01


class TuningEnd(StrEnum):
    """Why tuning ended.

    trials, seconds: the budget is used up. gain: the expected gain is below the requested minimum.
    through: no task has a candidate left. until: the caller stopped it.
    """

    TRIALS = "trials"
    SECONDS = "seconds"
    GAIN = "gain"
    THROUGH = "through"
    UNTIL = "until"


def gradient(tuning: Tuning, fastest: float = 0.0) -> float:
    """Seconds that the network is expected to save by one more round of a task.

    fastest: operations per second of the fastest similar task; 0 if there is none. Infinite before
    the task's first round, 0 if none of its trials has succeeded yet.
    """
    bests = [b for b in tuning.bests if b < inf]
    if not bests:
        return 0.0 if tuning.bests else inf
    now, rounds = bests[-1], len(tuning.bests)
    before = bests[max(0, len(bests) - 1 - WINDOW)]
    backward = (before - now) / WINDOW
    possible = now / rounds
    if fastest > 0 and tuning.task.operations:
        ahead = now - SIMILAR * tuning.task.operations / fastest
        # Only what noise does not explain is a gain: the least of ever more times creeps down.
        reached = next(n for n, b in enumerate(tuning.bests) if b <= now * (1 + CREEP))
        vain = rounds - 1 - reached
        possible = max(possible, ahead * 0.5 ** (vain / PATIENCE))
    gained = BACKWARD * backward + (1 - BACKWARD) * possible
    return tuning.task.calls * gained


class Scheduler:
    """Tasks that share a budget.

    similar: maps tasks to groups by name (default: the sketch of the task's default). A task pauses
    while its expected saving, as a share of the network's time, is below the budget's
    `expected_gain` divided by the number of tasks; when all pause, tuning ends. until: called
    before each round; true ends tuning.
    """

    def __init__(
        self,
        tunings: Sequence[Tuning],
        budget: Budget,
        *,
        batch: int = BATCH,
        similar: Callable[[Tuning], str] | None = None,
        until: Callable[[], bool] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        at_least_one(tasks=len(tunings), batch=batch, trials=budget.trials)
        self.tunings: Final = tuple(tunings)
        self.budget: Final = budget
        self._batch: Final = batch
        self._until: Final = until
        self._clock: Final = clock
        self._start: Final = clock()
        name = similar or _by_sketch
        self._kinds: Final = {t: name(t) for t in tunings}

    def run(self) -> TuningEnd:
        """Run rounds until the budget is used up, or no further gain is expected."""
        while (ending := self.ending) is None:
            self.step()
        return ending

    def step(self) -> Tuning:
        """Run one round of the most promising task. Raises InputError if no task is open."""
        tuning = self._most_promising()
        before = tuning.used
        # The first round is the default alone: its time shows whether the task is worth more.
        count = self._batch if tuning.bests else 1
        if self.budget.trials is not None:
            count = min(count, self.budget.trials - self.budget.used)
        tuning.step(count)
        self.budget.used += tuning.used - before
        self._announce(tuning)
        return tuning

    @property
    def ending(self) -> TuningEnd | None:
        """Why there is no further round; None if there is one."""
        budget = self.budget
        reasons: tuple[tuple[TuningEnd, bool], ...] = (
            (TuningEnd.UNTIL, self._until is not None and self._until()),
            (
                TuningEnd.TRIALS,
                budget.trials is not None and budget.used >= budget.trials,
            ),
            (
                TuningEnd.SECONDS,
                budget.seconds is not None and self.elapsed >= budget.seconds,
            ),
            (TuningEnd.THROUGH, all(t.through for t in self.tunings)),
            (TuningEnd.GAIN, not any(self._open())),
        )
        return next((ending for ending, reached in reasons if reached), None)

    @property
    def elapsed(self) -> float:
        """Seconds since construction."""
        return self._clock() - self._start

    @property
    def seconds(self) -> float:
        """Seconds of the network's tasks, each with its best schedule, over all calls."""
        return sum(t.task.calls * t.seconds for t in self.tunings)

    @property
    def gain(self) -> float:
        """The speedup of the network's tasks over their defaults.

        Tasks whose default failed or has not been measured yet are left out.
        """
        before = after = 0.0
        for tuning in self.tunings:
            default = _default_seconds(tuning)
            if default < inf:
                before += tuning.task.calls * default
                after += tuning.task.calls * tuning.seconds
        return before / after if after else 1.0

    @property
    def expected_gain(self) -> float:
        """The share of the network's time (0 to 1) that the next trials are expected to save."""
        return sum(map(self._expected_share, self.tunings))

    def outcomes(self) -> list[TaskOutcome]:
        """The outcome of each task, in order."""
        return [t.outcome() for t in self.tunings]

    # ------------------------------------------------------------------------- choosing

    def _most_promising(self) -> Tuning:
        """The first task with the highest promise. A task without a success yet gets the highest
        promise divided by its rounds, so it is retried ever more rarely."""
        promises = {t: self._promise(t) for t in self._open()}
        if not promises:
            raise InputError("no task has a candidate left", where="tune")
        known = (p for p in promises.values() if 0 < p < inf)
        highest = max(known, default=1.0)
        for tuning, promise in promises.items():
            if promise == 0 and tuning.seconds == inf:
                promises[tuning] = highest / len(tuning.bests)
        return max(promises, key=lambda t: promises[t])

    def _open(self) -> Iterator[Tuning]:
        least = self.budget.expected_gain / len(self.tunings)
        for tuning in self.tunings:
            rests = bool(least) and self._expected_share(tuning) < least
            if not tuning.through and not (tuning.bests and rests):
                yield tuning

    def _expected_share(self, tuning: Tuning) -> float:
        """The share of the network's time that a task is expected to save."""
        total = self.seconds
        if tuning.through:
            return 0.0
        if not 0 < total < inf:
            return tuning.expected_gain / len(self.tunings)
        share = tuning.task.calls * tuning.seconds / total
        return share * tuning.expected_gain

    def _promise(self, tuning: Tuning) -> float:
        alike = (t for t in self.tunings if self._kinds[t] == self._kinds[tuning])
        others = (t for t in alike if t is not tuning and 0 < t.seconds < inf)
        rates = (t.task.operations / t.seconds for t in others)
        return gradient(tuning, max(rates, default=0.0))

    def _announce(self, tuning: Tuning) -> None:
        progress: Mapping[str, Any] = {
            "task": tuning.task.name,
            "trials": tuning.used,
            "seconds": tuning.seconds,
            "calls": tuning.task.calls,
            "operations": tuning.task.operations,
            "bytes_moved": tuning.task.bytes_moved,
            "gain": _gain(tuning),
            "expected_gain": tuning.expected_gain,
            "bound": tuning.bound(tuning.best),
            "overhead": tuning.accounts.overhead,
            "network_trials": self.budget.used,
            "network_gain": self.gain,
            "network_expected_gain": self.expected_gain,
            "elapsed": self.elapsed,
        }
        events.emit("tune-progress", **progress)


def _by_sketch(tuning: Tuning) -> str:
    return tuning.task.space.default().sketch


def _default_seconds(tuning: Tuning) -> float:
    return tuning.trials[0].measurement.seconds if tuning.trials else inf


def _gain(tuning: Tuning) -> float:
    default = _default_seconds(tuning)
    return default / tuning.seconds if default < inf else 1.0
