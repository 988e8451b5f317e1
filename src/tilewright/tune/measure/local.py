"""Measuring on this machine: a worker for each slot, on processors that no other work gets."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Iterator

from tilewright.base import events
from tilewright.runtime.threads import available, choose_cpus
from tilewright.tune.base import Job, Measurement
from tilewright.tune.measure.options import Limits, Timing
from tilewright.tune.measure.slot import Slot


class LocalRunner:
    """Runs jobs in worker processes, `slots` at a time, each on processors of its own.

    threads: of every program. It takes slots * threads physical cores; with more slots than one,
    programs share the caches and the memory of the machine, and their times are less exact. cpus:
    those to use; None: different physical cores first. Raises InputError where there are not as
    many, ExecutionError where no worker starts.
    """

    def __init__(
        self,
        threads: int = 1,
        slots: int = 1,
        timing: Timing | None = None,
        limits: Limits | None = None,
        cpus: Iterable[int] | None = None,
    ) -> None:
        self.timing, self.limits = timing or Timing(), limits or Limits()
        self.slots, self.threads = slots, threads
        count = slots * threads
        self.cpus = choose_cpus(count) if cpus is None else list(cpus)
        # By the hash of a task's reference, which itself may have megabytes: a worker of a fleet
        # serves many tuning runs. Of two with one hash, some are given up early.
        self._best: dict[int, float] = {}
        self._slots: list[Slot] = []
        try:
            for n in range(slots):
                own = self.cpus[n * threads : (n + 1) * threads]
                self._slots.append(Slot(own, threads, self.timing, self.limits))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def spare(self) -> list[int]:
        """Processors on physical cores that no program is timed on: for builders."""
        return [c for c in choose_cpus(available()) if c not in self.cpus]

    @property
    def started(self) -> int:
        """How many workers were started in all."""
        return sum(slot.started for slot in self._slots)

    @property
    def processes(self) -> list[int]:
        """The workers, by the system's numbers."""
        return [slot.pid for slot in self._slots]

    def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """The number of each job with its measurement, as they come in.

        A job is asked for when a worker is free: whoever builds on the same processors builds then,
        while nothing is timed (if there is one slot). Jobs with the same reference are of one task;
        a program that is clearly slower than the best of them is given up early.
        """
        waiting = iter(jobs)
        busy: list[Slot] = []
        more = True
        try:
            while True:
                for slot in self._slots:
                    if more and slot not in busy:
                        job = next(waiting, None)
                        more = job is not None
                        if job is not None:
                            slot.give(job, self._best_of(job))
                            busy.append(slot)
                if not busy:
                    return
                for slot in _ready(busy):
                    busy.remove(slot)
                    yield self._taken(slot)
        finally:
            for slot in busy:  # nobody waits for these any more
                slot.close()

    def close(self) -> None:
        """End all workers."""
        for slot in self._slots:
            slot.close()
        self._slots.clear()

    def _best_of(self, job: Job) -> float:
        """Seconds of the best program of its task so far."""
        return self._best.get(hash(job.expected), float("inf"))

    def _taken(self, slot: Slot) -> tuple[int, Measurement]:
        job = slot.job
        assert job is not None
        number, found = slot.take()
        if job.expected:
            self._best[hash(job.expected)] = min(self._best_of(job), found.seconds)
        events.emit("measured", number=number, status=str(found.status))
        return number, found


def _ready(busy: list[Slot]) -> list[Slot]:
    """The slots that answered, or are too late; waits for the first."""
    late = min(slot.until for slot in busy)
    left = max(0.0, late - time.monotonic())
    ready, _, _ = select.select(busy, [], [], left)
    now = time.monotonic()
    return [slot for slot in busy if slot in ready or slot.until <= now]
