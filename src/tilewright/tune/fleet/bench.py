"""The worker's side: receive a program, measure it in a separate process, return the numbers.

Only bytes, strings and numbers are exchanged. A Dask process has one bench, with a thread for each
of its places.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, field
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ExecutionError, InputError
from tilewright.runtime.threads import choose_cpus
from tilewright.tune.base import Job, Measurement, Status
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Limits, Timing


@dataclass
class _Place:
    """Dedicated processors, and the runner on them with the last settings."""

    cpus: Sequence[int]
    settings: Mapping[str, Any] | None = None
    runner: LocalRunner | None = None

    def prepared(self, settings: Mapping[str, Any]) -> LocalRunner:
        """The runner with these settings."""
        if self.runner is None or self.settings != settings:
            self.close()
            self.runner = LocalRunner(
                settings["threads"],
                timing=Timing(**settings["timing"]),
                limits=Limits(**settings["limits"]),
                cpus=self.cpus[: settings["threads"]],
            )
            self.settings = settings
        return self.runner

    def close(self) -> None:
        """Stop its processes."""
        if self.runner is not None:
            self.runner.close()
        self.runner = None


@dataclass
class LocalPlaces:
    """The places of this machine. count: number of places. threads: physical cores of each.

    Raises InputError if there are not enough cores.
    """

    count: int
    threads: int
    places: queue.SimpleQueue[_Place] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        cpus = choose_cpus(self.count * self.threads)
        for n in range(self.count):
            own = cpus[n * self.threads : (n + 1) * self.threads]
            self.places.put(_Place(own))

    def measure(
        self, settings: Mapping[str, Any], artifact: bytes, expected: bytes
    ) -> Measurement:
        """Measure one program on a free place."""
        place = self.places.get()
        try:
            runner = place.prepared(settings)
            ((_, found),) = runner.measure([Job(0, artifact, expected)])
        finally:
            self.places.put(place)
        return found

    def close(self) -> None:
        """Stop all processes; waits until places in use are free."""
        for _ in range(self.count):
            self.places.get().close()


_BENCH: Final[list[LocalPlaces]] = []  # of this process: one, or none


@contextmanager
def set_up(bench: LocalPlaces) -> Iterator[None]:
    """A block in which this process has a bench; it is closed at the end."""
    _BENCH[:] = [bench]
    try:
        yield
    finally:
        _BENCH.clear()
        bench.close()


def settings(threads: int, timing: Timing, limits: Limits) -> dict[str, Any]:
    """How to measure, in the form that is sent."""
    given = {"timing": asdict(timing), "limits": asdict(limits)}
    return {"threads": threads, **given}


def measure(
    how: Mapping[str, Any], artifact: bytes, expected: bytes
) -> tuple[Any, ...]:
    """The function that Dask calls on a worker: returns the fields of the Measurement.

    Raises ExecutionError in a process that is not a worker of a fleet.
    """
    if not _BENCH:
        raise ExecutionError("this process is not a worker", where="fleet")
    return astuple(_BENCH[0].measure(how, artifact, expected))


def reference(data: bytes) -> bytes:
    """A task's reference as a Dask result, which Dask then keeps near its workers."""
    return data


def received(fields: Any, build_seconds: float) -> Measurement:
    """Parse the Measurement that a worker sent. Raises InputError if it is invalid."""
    try:
        status, rounds, reason, noise, _, run_seconds = fields
        numbers = [*rounds, noise, run_seconds]
        if not all(type(n) is float and math.isfinite(n) and n >= 0 for n in numbers):
            raise ValueError(f"invalid times {numbers!r:.80}")
        if not isinstance(reason, str):
            raise ValueError(f"invalid reason {reason!r:.80}")
        status = Status(status)
        if (status is Status.OK) != bool(rounds):
            raise ValueError(f"{len(rounds)} rounds with status {status}")
    except (ValueError, TypeError) as error:
        raise InputError(
            f"a worker sent an invalid measurement: {error}", where="fleet"
        ) from None
    return Measurement(status, tuple(rounds), reason, noise, build_seconds, run_seconds)
