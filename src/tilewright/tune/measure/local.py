"""Measuring on this machine: a worker per slot, each on dedicated processors."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Iterator

from tilewright.base import events
from tilewright.runtime.threads import available, choose_cpus
from tilewright.tune.base import Job, Measurement
from tilewright.tune.measure.options import Limits, Timing
from tilewright.tune.measure.priority import check_realtime
from tilewright.tune.measure.slot import WorkerSlot


class LocalRunner:
    """Runs jobs in worker processes, `slots` at a time, each on separate processors.

    threads: of every program. It uses slots * threads physical cores; with more than one slot,
    programs share the machine's caches and memory bandwidth, and times are less accurate. cpus: the
    processors to use; None: distinct physical cores first. Raises InputError if there are not
    enough or real-time priority is wanted and not permitted, ExecutionError if no worker starts.
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
        if self.timing.realtime:
            check_realtime()
        self.slots, self.threads = slots, threads
        count = slots * threads
        self.cpus = choose_cpus(count) if cpus is None else list(cpus)
        # Keyed by hash, because a task's reference may have megabytes and a worker of a fleet
        # serves many tuning runs. A collision only makes some trials stop early.
        self._best: dict[int, float] = {}
        self._slots: list[WorkerSlot] = []
        try:
            for n in range(slots):
                own = self.cpus[n * threads : (n + 1) * threads]
                self._slots.append(WorkerSlot(own, threads, self.timing, self.limits))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def spare(self) -> list[int]:
        """Processors on physical cores without timed programs: for builders."""
        return [c for c in choose_cpus(available()) if c not in self.cpus]

    @property
    def started(self) -> int:
        """The total number of workers started."""
        return sum(slot.started for slot in self._slots)

    @property
    def processes(self) -> list[int]:
        """The PIDs of the workers."""
        return [slot.pid for slot in self._slots]

    def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """The number of each job with its measurement, as they finish.

        A job is requested only when a worker is free: a builder on the same processors then builds
        while nothing is timed (with one slot). Jobs with the same reference belong to one task; a
        program that is clearly slower than the best of them is stopped early.
        """
        waiting = iter(jobs)
        busy: list[WorkerSlot] = []
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
            for slot in busy:  # abandoned by the consumer
                slot.close()

    def close(self) -> None:
        """Stop all workers."""
        for slot in self._slots:
            slot.close()
        self._slots.clear()

    def _best_of(self, job: Job) -> float:
        """The shortest seconds among programs of its task so far."""
        return self._best.get(hash(job.expected), float("inf"))

    def _taken(self, slot: WorkerSlot) -> tuple[int, Measurement]:
        job = slot.job
        assert job is not None
        number, found = slot.take()
        if job.expected:
            self._best[hash(job.expected)] = min(self._best_of(job), found.seconds)
        events.emit("measured", number=number, status=str(found.status))
        return number, found


def _ready(busy: list[WorkerSlot]) -> list[WorkerSlot]:
    """Wait for the first slot; returns those that have answered or timed out."""
    late = min(slot.until for slot in busy)
    left = max(0.0, late - time.monotonic())
    ready, _, _ = select.select(busy, [], [], left)
    now = time.monotonic()
    return [slot for slot in busy if slot in ready or slot.until <= now]
