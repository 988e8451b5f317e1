"""Tasks whose every candidate's time is known: for tests and comparisons of searches.

A candidate is a number below each of some sides; its program is a loop nest with these extents, so
a cost model can tell programs apart. Nothing is built and nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import log, prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Var, const
from tilewright.loops.nodes import For, Kernel, Stmt, Store, loop
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.schedule.space import Parameter, Point
from tilewright.tune.base import (
    Candidate,
    Job,
    Measurement,
    Prediction,
    Sample,
    Status,
    Task,
)

Place = tuple[int, ...]
Time = Callable[[Place], float]
SKETCH = "nest"


def bowl(place: Place) -> float:
    """Separable: each number has one best value, 7, 14, 21 ... modulo 10; the least is 1."""
    wanted = ((7 * (axis + 1)) % 10 for axis in range(len(place)))
    return 1.0 + sum(0.1 * abs(n - w) for n, w in zip(place, wanted, strict=True))


def cliffs(place: Place) -> float:
    """Like a processor: time falls with larger tiles until they exceed a cache or the registers."""
    sizes = [1 << n for n in place]
    work = 1.0
    for capacity, group in (
        (64, sizes[:2]),
        (4096, sizes[:4]),
        (1 << 16, sizes),
    ):
        used = prod(group)
        work += capacity / used if used <= capacity else 0.3 * log(used / capacity) + 2
    return work + 0.02 * sum((a - b) % 3 for a, b in pairwise(place))


def rugged(place: Place) -> float:
    """A bowl with noise that belongs to the place, as far apart as half of its slope."""
    return bowl(place) * (1 + 0.3 * Random(f"rugged {place}").random())


class Landscape:
    """All places below the sides, in order. refused: whether a primitive rejects a place."""

    def __init__(
        self,
        sides: Sequence[int],
        time: Time,
        refused: Callable[[Place], bool] = lambda place: False,
        start: Place | None = None,
    ) -> None:
        self.sides = tuple(sides)
        self.names = tuple(f"p{axis:02}" for axis in range(len(sides)))
        self.time = time
        self.refused = refused
        self._start = start or (0,) * len(sides)

    @property
    def size(self) -> int:
        """The number of places, including rejected ones."""
        return prod(self.sides)

    def __iter__(self) -> Iterator[Candidate]:
        return (self.candidate(p) for p in product(*map(range, self.sides)))

    def default(self) -> Candidate:
        """The start."""
        return self.candidate(self._start)

    def sample(self, random: Random) -> Candidate:
        """Any place."""
        place = tuple(random.randrange(side) for side in self.sides)
        return self.candidate(place)

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """Another value of one number, if there is one."""
        place = list(self.place(candidate))
        wide = [axis for axis, side in enumerate(self.sides) if side > 1]
        if wide:
            axis = random.choice(wide)
            other = random.randrange(self.sides[axis] - 1)
            place[axis] = other + (other >= place[axis])
        return self.candidate(tuple(place))

    def cross(
        self,
        a: Candidate,
        b: Candidate,
        random: Random,
    ) -> Candidate:
        """A place with each number from one of two others."""
        pairs = zip(self.place(a), self.place(b), strict=True)
        place = tuple(random.choice(pair) for pair in pairs)
        return self.candidate(place)

    def candidate(self, place: Place) -> Candidate:
        """The candidate at a place."""
        values = dict(zip(self.names, place, strict=True))
        return Candidate(SKETCH, values)

    def place(self, candidate: Candidate) -> Place:
        """The place of a candidate."""
        return tuple(candidate.values[name] for name in self.names)

    def seconds(self, candidate: Candidate) -> float:
        """The time of a candidate."""
        arrays = self.place(candidate)
        return self.time(arrays)

    # ------------------------------------------------------------------------- as a task

    def task(
        self,
        name: str = "landscape",
        calls: int = 1,
        operations: int = 0,
    ) -> Task:
        """The task of finding the least time; its artifacts are candidates' keys."""
        return Task(
            key=name,
            name=name,
            space=self,
            schedule=self.point,
            build=lambda point: Candidate.of(point).key.encode(),
            calls=calls,
            operations=operations,
        )

    def point(self, candidate: Candidate) -> Point:
        """The program of a candidate; missing numbers come from the start.

        Raises ScheduleError for rejected places.
        """
        start = dict(zip(self.names, self._start, strict=True))
        values: Mapping[str, Any] = {**start, **candidate.values}
        place = tuple(values[name] for name in self.names)
        if self.refused(place):
            raise ScheduleError(f"{place} is rejected", where="landscape")
        ranges = zip(self.names, self.sides, strict=True)
        parameters = tuple(
            Parameter(name, tuple(range(side)), start[name], values[name])
            for name, side in ranges
        )
        return Point(Schedule(self._kernel(place)), parameters, SKETCH)

    def _kernel(self, place: Place) -> Kernel:
        out = Buffer("out", (1,), float32)
        body: Stmt = Store(out, (const(0),), const(1.0, out.dtype))
        for name, number in reversed(list(zip(self.names, place, strict=True))):
            body = loop(Var(name, const(0).dtype), number + 2, body)
        return Kernel("nest", (out,), (out,), body)


def place_of(kernel: Kernel) -> Place:
    """The place whose program this is."""
    loops = (p.stmt for p in walk(kernel.body) if isinstance(p.stmt, For))
    return tuple((s.trips or 2) - 2 for s in loops)


class TableRunner:
    """Measures artifacts of landscapes by looking up their times. jobs: the candidates measured, in
    order.

    rounds: the rounds of a measurement. noise: its amplitude, seeded by the candidate and the
    round.
    """

    slots = 1

    def __init__(
        self,
        landscape: Landscape,
        noise: float = 0.0,
        rounds: int = 3,
        crash: Any = None,
    ) -> None:
        self.landscape = landscape
        self.jobs: list[Candidate] = []
        self._noise = noise
        self._rounds = rounds
        self._crash = crash or (lambda candidate: False)

    def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """Measure the jobs in order."""
        for job in jobs:
            candidate = Candidate.parse(job.artifact.decode())
            self.jobs.append(candidate)
            yield job.number, self._measurement(candidate)

    def _measurement(self, candidate: Candidate) -> Measurement:
        if self._crash(candidate):
            return Measurement(Status.CRASH, reason="as asked")
        draw = Random(f"{candidate.key} {self.jobs.count(candidate)}")
        seconds = self.landscape.seconds(candidate)
        rounds = [
            seconds * (1 + self._noise * draw.random()) for _ in range(self._rounds)
        ]
        return Measurement(Status.OK, tuple(rounds))

    def close(self) -> None:
        """There is nothing to end."""


class KnowingModel:
    """A cost model that knows a landscape, but for an error that belongs to each place."""

    name = "knowing"
    absolute = True

    def __init__(self, landscape: Landscape, error: float = 0.0) -> None:
        self.predicted = 0
        self._landscape = landscape
        self._error = error

    def fit(self, samples: Sequence[Sample]) -> None:
        """Does nothing: the model knows the landscape."""

    def update(self, samples: Sequence[Sample]) -> None:
        """Does nothing: the model knows the landscape."""

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Logarithms of the times."""
        self.predicted += len(kernels)
        cost = [self._cost(place_of(k)) for k in kernels]
        spread = np.full(len(kernels), self._error)
        return Prediction(np.array(cost, dtype=np.float64), spread)

    def _cost(self, place: Place) -> float:
        if self._error:
            off = self._error * Random(f"off {place}").gauss(0.0, 1.0)
        else:
            off = 0
        return log(self._landscape.time(place)) + off

    def save(self, path: Path) -> None:
        """There is nothing to save."""

    def load(self, path: Path) -> None:
        """There is nothing to load."""


class LearningModel:
    """A cost model that learns from trials: a Gaussian process over places.

    Its covariance is the mean of one that falls with the distance and one that counts equal
    numbers. Costs more than `WORST` above the least are taken to be there; what failed is taken to
    be `FAILED` above the slowest. Before it has learned, it knows nothing.
    """

    name = "learning"
    absolute = True
    WORST = 3.0
    FAILED = 0.5
    NOISE = 0.05

    def __init__(self, sides: Sequence[int]) -> None:
        self._widths = np.maximum(1, np.array(sides, dtype=np.float64) - 1)
        self._places: list[Place] = []
        self._costs: list[float] = []
        self._inverse: Any = None
        self._weights: Any = None

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn from these alone."""
        self._places, self._costs = [], []
        self.update(samples)

    def update(self, samples: Sequence[Sample]) -> None:
        """Learn from these as well."""
        self._places += [place_of(s.kernel) for s in samples]
        self._costs += [log(s.seconds) for s in samples]
        known = np.array(self._places)
        scaled = self._scaled()
        noise = self.NOISE * np.eye(len(scaled))
        self._inverse = np.linalg.inv(self._covariance(known, known) + noise)
        self._weights = self._inverse @ (scaled - scaled.mean())

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Costs, and how far they may be off."""
        if not self._costs:
            unknown = np.full(len(kernels), np.inf)
            return Prediction(np.zeros(len(kernels)), unknown)
        asked = np.array([place_of(k) for k in kernels])
        shared = self._covariance(asked, np.array(self._places))
        scaled = self._scaled()
        cost = shared @ self._weights + scaled.mean()
        left = 1 - np.einsum("ij,jk,ik->i", shared, self._inverse, shared)
        spread = scaled.std() * np.sqrt(np.maximum(left, 0.0))
        return Prediction(cost, spread)

    def _scaled(self) -> Any:
        costs = np.array(self._costs)
        finite = costs[np.isfinite(costs)]
        if not len(finite):
            return np.zeros(len(costs))
        worst = min(finite.min() + self.WORST, finite.max() + self.FAILED)
        return np.minimum(costs, worst)

    def _covariance(self, a: Any, b: Any) -> Any:
        apart = (a[:, None, :] - b[None, :, :]) / self._widths
        near = np.exp(-4 * (apart**2).mean(axis=2) * len(self._widths) ** 0.5)
        return (near + (apart == 0).mean(axis=2)) / 2

    def save(self, path: Path) -> None:
        """Write places and costs."""
        places = np.array(self._places)
        costs = np.array(self._costs)
        np.savez(path, places=places, costs=costs)

    def load(self, path: Path) -> None:
        """Read what `save` wrote; the next update learns from it."""
        with np.load(path) as found:
            self._places = [tuple(map(int, row)) for row in found["places"]]
            self._costs = found["costs"].tolist()
