"""What the parts of the tuner are to one another.

A Task has a Space of candidates. A Strategy proposes some, a CostModel foresees which are fast, a
Runner measures those, and each Trial is recorded before anything else is done with it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:  # what only measures needs no compiler
    from tilewright.loops.nodes import Kernel
    from tilewright.schedule.space import Point
    from tilewright.schedule.space.selection import Selection

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A point of a space as plain data: a value for every parameter that was met.

    sketch: the family of schedules; empty for a space of a user's own. Equal candidates have equal
    `key`s, which is how they are remembered, stored and sent.
    """

    sketch: str
    values: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """The candidate as JSON, its parameters in order of their names."""
        given = {"sketch": self.sketch, **self.values}
        return json.dumps(given, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def parse(key: str) -> Candidate:
        """The candidate of a key; tuples are lists in it. Raises ValueError for other text."""
        values = json.loads(key)
        if not isinstance(values, dict) or not isinstance(values.get("sketch"), str):
            raise ValueError(f"{key[:80]!r} is not the key of a candidate")
        return Candidate(values.pop("sketch"), values)

    @staticmethod
    def of(point: Point) -> Candidate:
        """The candidate that leads to this point."""
        return Candidate(point.sketch, point.values)

    @property
    def selection(self) -> Selection:
        """What the compiler takes to make its schedule."""
        from tilewright.schedule.space.selection import Selection

        return Selection(self.sketch, self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class Status(StrEnum):
    """What became of a trial.

    refused: a primitive refused the schedule. build: no code could be made. crash, timeout, memory:
    its process ended so. wrong: its results differ from the reference's. lost: whoever measured it
    is gone, and so often that it is not tried again.
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
    """What measuring one candidate gave.

    rounds: seconds of one call, each the mean of a batch of calls. reason: why it failed, in one
    line; empty for `ok`. noise: what the anchor kernel took then, in parts of its best; 1 for a
    quiet machine. build_seconds, run_seconds: of the wall clock, all included.
    """

    status: Status
    rounds: tuple[float, ...] = ()
    reason: str = ""
    noise: float = 1.0
    build_seconds: float = 0.0
    run_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The median of the rounds; infinite for what failed."""
        ok = self.status is Status.OK and self.rounds
        return statistics.median(self.rounds) if ok else float("inf")


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate with its measurement, as records keep it.

    predicted: seconds that the model foresaw, if it did. strategy: who proposed it.
    """

    candidate: Candidate
    measurement: Measurement
    predicted: float | None = None
    strategy: str = ""


class Space(Protocol):
    """The candidates of one task; every method returns only those that are possible.

    A candidate that a primitive refuses is possible here: it is found out when it is made.
    """

    @property
    def size(self) -> int | None:
        """How many candidates there are, exactly; None where counting costs a walk of them all."""
        ...

    def default(self) -> Candidate:
        """What is good without tuning."""
        ...

    def sample(self, random: Random) -> Candidate:
        """One of them by chance."""
        ...

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """The candidate with one parameter changed; later ones keep their values if possible."""
        ...

    def cross(self, a: Candidate, b: Candidate, random: Random) -> Candidate:
        """Each parameter from `a` or `b`, where what was taken before permits it."""
        ...

    def __iter__(self) -> Iterator[Candidate]:
        """All of them, in order."""
        ...


def _scheduled(point: Point) -> Kernel:
    return point.schedule.kernel


@dataclass(frozen=True, eq=False)
class Task:
    """A kernel to tune.

    key: the identity that records are found by (`records.key`): operator structure, shapes, dtypes,
    layouts, machine, threads, versions. name: for people. schedule: the point of a candidate; it
    raises ScheduleError for one that a primitive refuses. build: an artifact's bytes of a point,
    which a Runner loads (its inputs are the kernel's parameters that are not constants). calls: how
    often the model runs it; kernels: under which names. operations: multiply-adds count two;
    bytes_moved: of parameters. reference: inputs and right results, for `Job.expected`; it
    takes seconds, so make it once. program: what of a point runs in each call, which features are
    read from: without the packing of constants.
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
    """What a cost model learns from: a program and what it took.

    task: the key of its task; only programs of one task are compared. machine: where it ran.
    """

    task: str
    kernel: Kernel
    seconds: float
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model foresees of several programs, in their order.

    cost: natural logarithms of seconds, or of anything that grows with them within one task.
    spread: standard deviations of `cost`; infinite where the model knows nothing.
    """

    cost: Vector
    spread: Vector


class CostModel(Protocol):
    """Foresees how long programs take."""

    name: str
    absolute: bool  # whether costs are logarithms of seconds, and not only an order

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn from these alone."""
        ...

    def update(self, samples: Sequence[Sample]) -> None:
        """Learn from these as well."""
        ...

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """What programs of the task cost."""
        ...

    def save(self, path: Path) -> None:
        """Write what was learned into one file."""
        ...

    def load(self, path: Path) -> None:
        """Read what `save` wrote. Raises InputError for another file."""
        ...


class Strategy(Protocol):
    """Chooses what to measure next."""

    name: str

    def propose(self, count: int) -> list[Candidate]:
        """At most `count` candidates that were not proposed before; none when it is through."""
        ...

    def tell(self, trials: Sequence[Trial]) -> None:
        """What became of some of them, and of candidates that others measured."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A program to measure. number: of the caller's own. artifact: what `Task.build` made."""

    number: int
    artifact: bytes
    expected: bytes = b""  # of `Task.reference`; empty: results are not compared
    build_seconds: float = 0.0


class Runner(Protocol):
    """Measures programs: on this machine, or on those of a fleet."""

    @property
    def slots(self) -> int:
        """How many jobs it takes at a time."""
        ...

    def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """The number of each job with its measurement, as they come in."""
        ...

    def close(self) -> None:
        """End all its processes."""
        ...


@dataclass(slots=True)
class Budget:
    """What tuning may take, all kernels of a model together. None: as much as it likes.

    expected_gain: tuning ends when less than this share of the time is expected to be gained.
    """

    trials: int | None = None
    seconds: float | None = None
    expected_gain: float = 0.0
    used: int = field(default=0, init=False)
