"""The interfaces between the parts of the tuner.

A Task has a Space of candidates. A Strategy proposes some, a CostModel predicts which are fast, a
Runner measures those, and each Trial is recorded before anything else uses it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilewright.base.dataclass import dataclass

if TYPE_CHECKING:  # code that only measures needs no compiler
    from tilewright.loops.nodes import Kernel
    from tilewright.schedule.space import Point
    from tilewright.schedule.space.selection import Selection

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A point of a space as plain data: a value for every parameter on its path.

    sketch: the family of schedules; empty for a user-defined space. Equal candidates have equal
    `key`s, by which they are cached, stored and sent.
    """

    sketch: str
    values: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """The candidate as JSON, with its parameters sorted by name."""
        given = {"sketch": self.sketch, **self.values}
        return json.dumps(given, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def parse(key: str) -> Candidate:
        """Parse a key; tuples become lists. Raises ValueError for other text."""
        values = json.loads(key)
        if not isinstance(values, dict) or not isinstance(values.get("sketch"), str):
            raise ValueError(f"{key[:80]!r} is not the key of a candidate")
        return Candidate(values.pop("sketch"), values)

    @staticmethod
    def of(point: Point) -> Candidate:
        """The candidate of a point."""
        return Candidate(point.sketch, point.values)

    @property
    def selection(self) -> Selection:
        """The compiler's form of this candidate, from which it makes the schedule."""
        from tilewright.schedule.space.selection import Selection

        return Selection(self.sketch, self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class Status(StrEnum):
    """The result of a trial.

    refused: a primitive rejected the schedule. build: code generation failed. crash, timeout,
    memory: why its process ended. wrong: its results differ from the reference's. lost: its workers
    disappeared too often to try again.
    """

    OK = "ok"
    REFUSED = "refused"
    BUILD = "build"
    CRASH = "crash"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    WRONG = "wrong"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of measuring one candidate.

    rounds: seconds per call, each the mean of a batch of calls. reason: why it failed, in one line;
    empty for `ok`. noise: the anchor kernel's time at that moment, relative to its best; 1 on a
    quiet machine. build_seconds, run_seconds: total wall time.
    """

    status: Status
    rounds: tuple[float, ...] = ()
    reason: str = ""
    noise: float = 1.0
    build_seconds: float = 0.0
    run_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The median of the rounds; infinite if it failed."""
        ok = self.status is Status.OK and self.rounds
        return statistics.median(self.rounds) if ok else float("inf")


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate with its measurement, as records keep it.

    predicted: the seconds that the model predicted, if any. strategy: the name of the proposer.
    """

    candidate: Candidate
    measurement: Measurement
    predicted: float | None = None
    strategy: str = ""


class Space(Protocol):
    """The candidates of one task; every method returns valid candidates only.

    A candidate that a primitive would reject counts as valid: only making its schedule shows that.
    """

    @property
    def size(self) -> int | None:
        """The exact number of candidates; None if counting would need full enumeration."""
        ...

    def default(self) -> Candidate:
        """The candidate to use without tuning."""
        ...

    def sample(self, random: Random) -> Candidate:
        """A random candidate."""
        ...

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """The candidate with one parameter changed; later ones keep their values if possible."""
        ...

    def cross(self, a: Candidate, b: Candidate, random: Random) -> Candidate:
        """Each parameter from `a` or `b`, if the earlier choices allow its value."""
        ...

    def __iter__(self) -> Iterator[Candidate]:
        """All candidates, in order."""
        ...


def _scheduled(point: Point) -> Kernel:
    return point.schedule.kernel


@dataclass(frozen=True, eq=False)
class Task:
    """A kernel to tune.

    key: the identity of its records (`records.key`): operator structure, shapes, dtypes, layouts,
    machine, threads, versions. name: for display. schedule: the point of a candidate; raises
    ScheduleError if a primitive rejects it. build: the artifact of a point as bytes, which a Runner
    loads (its inputs are the kernel's non-constant parameters). calls: how often the model runs it;
    kernels: the names under which it does. operations: a multiply-add counts as two. bytes_moved:
    the bytes of its parameters. reference: inputs and correct results, for `Job.expected`; it takes
    seconds, so call it once. program: the part of a point that runs in each call, without the
    packing of constants; features are extracted from it.
    """

    key: str
    name: str
    space: Space
    schedule: Callable[[Candidate], Point]
    build: Callable[[Point], bytes]
    calls: int = 1
    operations: int = 0
    bytes_moved: int = 0
    sources: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    reference: Callable[[], bytes] = bytes
    program: Callable[[Point], Kernel] = _scheduled


@dataclass(frozen=True, slots=True)
class Sample:
    """A training sample for a cost model: a program and its time.

    task: the key of its task; only programs of one task are compared. machine: where it ran.
    """

    task: str
    kernel: Kernel
    seconds: float
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's predictions for several programs, in order.

    cost: natural logarithms of seconds, or anything that increases with them within one task.
    spread: standard deviations of `cost`; infinite if the model knows nothing.
    """

    cost: Vector
    spread: Vector


class CostModel(Protocol):
    """Predicts the running time of programs."""

    name: str
    absolute: bool  # whether costs are logarithms of seconds, not just a ranking

    def fit(self, samples: Sequence[Sample]) -> None:
        """Train on these samples only."""
        ...

    def update(self, samples: Sequence[Sample]) -> None:
        """Train on these samples in addition."""
        ...

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Predict the cost of programs of a task."""
        ...

    def save(self, path: Path) -> None:
        """Write the trained model to one file."""
        ...

    def load(self, path: Path) -> None:
        """Read a file written by `save`. Raises InputError for any other file."""
        ...


class Strategy(Protocol):
    """Chooses what to measure next."""

    name: str

    def propose(self, count: int) -> list[Candidate]:
        """At most `count` candidates not proposed before; none when exhausted."""
        ...

    def tell(self, trials: Sequence[Trial]) -> None:
        """Report finished trials: of its proposals, and of candidates measured by others."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A program to measure. number: chosen by the caller. artifact: the result of `Task.build`."""

    number: int
    artifact: bytes
    expected: bytes = b""  # of `Task.reference`; empty: results are not compared
    build_seconds: float = 0.0


class Runner(Protocol):
    """Measures programs, on this machine or on a fleet."""

    @property
    def slots(self) -> int:
        """How many jobs it runs at a time."""
        ...

    def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """The number of each job with its measurement, as they finish."""
        ...

    def close(self) -> None:
        """Stop all its processes."""
        ...


@dataclass(slots=True)
class Budget:
    """Limits on tuning, for all kernels of a model together. None: no limit.

    expected_gain: tuning ends when the expected saving falls below this share of the time.
    """

    trials: int | None = None
    seconds: float | None = None
    expected_gain: float = 0.0
    used: int = field(default=0, init=False)
