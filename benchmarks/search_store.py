"""Measured times of operators' programs, in a file: each program is measured once, for all runs.

A line for each program, written as soon as it is measured: a killed run resumes. Programs that are
equal up to names share a line. `settle` measures them again: a line with the time alone is added,
and the median of a program's times counts.

    python -m benchmarks.search_store FOLDER/product_256.jsonl ... -o recorded.json

writes features and times for the tests of cost models.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import numpy as np

from benchmarks.metaschedule import OPERATORS, arguments
from benchmarks.pretrain_rows import packed, unpacked
from tilewright import te
from tilewright.base.errors import InputError, ScheduleError
from tilewright.lang.function import Function
from tilewright.schedule.space import Point
from tilewright.targets.registry import target
from tilewright.tune.base import Candidate, Job, Measurement, Status, Task
from tilewright.tune.building import BuildAhead, Built, Numbered
from tilewright.tune.features.facts import Facts
from tilewright.tune.features.fast import Fast
from tilewright.tune.measure.builder import ProgramBuilder
from tilewright.tune.measure.local import LocalRunner
from tilewright.tune.measure.options import Timing
from tilewright.tune.measure.priority import check_realtime
from tilewright.tune.models import stored
from tilewright.tune.pretrained import near
from tilewright.tune.strategies.programs import identity

RECORDED: Final = "recorded times"  # the kind of file that `main` writes
NEAR: Final = 0.95  # a program this near the best is as good as found
LEAST: Final = 3  # times of each program, so that a disturbed one does not count
# Programs this near the best are measured until it is clear which of them are NEAR.
CONTENDING: Final = 0.9


def task_of(name: str) -> Task:
    """The task of an operator of `benchmarks.metaschedule`, on one thread."""
    args = arguments(te, OPERATORS[name])
    schedule = te.create_schedule(args[-1].op)
    function = te.build(schedule, args, threads=1, auto=True, records=False)
    assert isinstance(function, Function) and function.origin is not None
    return function.origin.program.task()


def candidates(task: Task, count: int) -> dict[Candidate, bool]:
    """The default, and as many random ones as such near it; whether each is random."""
    random = Random(0)
    default = task.space.default()
    found = {default: False}
    for _ in range(2 * count):
        if len(found) >= count:
            break
        found.setdefault(task.space.sample(random), True)
        found.setdefault(near(task, default, random), False)
    return dict(islice(found.items(), count))


def timing() -> Timing:
    """Times to within a percent or so; with real-time priority if that is permitted."""
    try:
        check_realtime()
    except InputError:
        return Timing(most=20, seconds=0.1)
    return Timing(most=20, seconds=0.1, realtime=True)


class NoRunner:
    """A runner for builds that measure."""

    slots = 1

    def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """There are no jobs."""
        for job in jobs:
            raise AssertionError(f"job {job.number} is not measured yet")
        yield from ()

    def close(self) -> None:
        """There is nothing to end."""


class MeasuredStore:
    """The times of one operator's programs.

    As a `Build` it returns measurements: known ones from the file, and new ones after measuring and
    writing them, with their features `fast`. measure: of fresh points.
    """

    def __init__(
        self,
        path: Path,
        measure: Callable[[Task, list[Numbered]], Iterator[Built]],
    ) -> None:
        self.path: Final = path
        self.times: Final[dict[str, float]] = {}
        self.rounds: Final[dict[str, list[float]]] = defaultdict(list)
        self.candidates: Final[dict[str, Candidate]] = {}
        self._measure: Final = measure
        self._features: Final = Fast(Facts.of(target("cpu", "native", threads=1)))
        if path.exists():
            self._read()

    def _read(self) -> None:
        whole = self.path.read_bytes()
        cut = whole.rfind(b"\n") + 1
        if cut < len(whole):  # the line that a kill cut off
            self.path.write_bytes(whole[:cut])
        for number, text in enumerate(whole[:cut].splitlines(), 1):
            try:
                row = json.loads(text)
                digest, seconds = str(row["program"]), row["seconds"]
                if "key" in row:
                    self.candidates[digest] = Candidate.parse(row["key"])
                self._count(digest, inf if seconds is None else seconds)
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"line {number} is not a measured program: {error!r}",
                    where=str(self.path),
                    hint="remove it; all others can be read",
                ) from error

    def _count(self, digest: str, seconds: float) -> None:
        self.rounds[digest].append(seconds)
        self.times[digest] = statistics.median(self.rounds[digest])

    @property
    def best(self) -> float:
        """The least seconds of all."""
        return min(self.times.values(), default=inf)

    def near(self, share: float) -> set[str]:
        """The programs that take at most 1/share of the least seconds."""
        return {one for one, taken in self.times.items() if taken * share <= self.best}

    def __call__(self, task: Task, points: Iterable[Numbered]) -> Iterator[Built]:
        """The measurement of each point."""
        fresh: dict[str, list[int]] = {}
        first: list[Numbered] = []
        digests: dict[int, str] = {}
        for number, point in points:
            digest = program_of(task, point)
            if digest in self.times:
                yield number, self.known(digest)
                continue
            if digest not in fresh:
                first.append((number, point))
                digests[number] = digest
            fresh.setdefault(digest, []).append(number)
        if not first:
            return
        made = dict(first)
        for number, found in self._measure(task, first):
            assert isinstance(found, Measurement)
            digest, point = digests[number], made[number]
            features = packed(self._features.extract(task.program(point))[0])
            self._add(digest, Candidate.of(point).key, features, found)
            for one in fresh[digest]:
                yield one, self.known(digest)

    def known(self, digest: str) -> Measurement:
        """The measurement of a program that was measured."""
        seconds = self.times[digest]
        if seconds == inf:
            return Measurement(Status.CRASH, reason="it failed when it was measured")
        return Measurement(Status.OK, (seconds,))

    def _add(self, digest: str, key: str, features: str, found: Measurement) -> None:
        self.candidates[digest] = Candidate.parse(key)
        self._write(digest, found, {"key": key, "features": features})

    def again(self, digest: str, found: Measurement) -> None:
        """Count another time of a program that was measured."""
        self._write(digest, found, {})

    def _write(self, digest: str, found: Measurement, about: Mapping[str, str]) -> None:
        seconds = None if found.seconds == inf else found.seconds
        row = {"program": digest, "seconds": seconds, **about}
        if seconds is None:
            row["reason"] = f"{found.status}: {found.reason}"
        with self.path.open("a") as file:
            print(json.dumps(row), file=file)
        self._count(digest, found.seconds)


def program_of(task: Task, point: Point) -> str:
    """A digest that programs share which are equal up to names."""
    text = identity(task.program(point))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Workshop(Protocol):
    """Builds the programs of points, and measures them."""

    def built(self, task: Task, points: Iterable[Numbered]) -> Iterator[Built]: ...
    def measured(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]: ...


class Shop:
    """Builds and measures points of any task."""

    def __enter__(self) -> Shop:
        with ExitStack() as stack:
            self._runner = stack.enter_context(LocalRunner(timing=timing()))
            builder = ProgramBuilder(self._runner.spare)
            stack.callback(builder.close)
            self._build = BuildAhead(builder)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __call__(self, task: Task, points: list[Numbered]) -> Iterator[Built]:
        """The measurement of each point. All are built before the first is timed."""
        jobs: list[Job] = []
        for number, made in self.built(task, points):
            if isinstance(made, Job):
                jobs.append(made)
            else:
                yield number, made
        yield from self.measured(jobs)

    def built(self, task: Task, points: Iterable[Numbered]) -> Iterator[Built]:
        """The job of each point, or why there is none."""
        return self._build(task, points)

    def measured(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """The measurement of each job."""
        return self._runner.measure(jobs)


def fill(store: MeasuredStore, task: Task, count: int, batch: int = 16) -> None:
    """Measure `count` candidates, half of them random and half near the default."""
    points: list[Numbered] = []
    for number, candidate in enumerate(candidates(task, count)):
        try:
            points.append((number, task.schedule(candidate)))
        except ScheduleError:
            continue
        if len(points) == batch:
            list(store(task, points))
            points.clear()
    list(store(task, points))


def settle(store: MeasuredStore, task: Task, shop: Workshop, most: int) -> int:
    """Measure the programs of a store again until it is clear which are near the best.

    Each gets LEAST times, in rounds over all of them; then those that contend with the best are
    measured until two rounds agree on which of them are NEAR it, in `most` rounds at most. Returns
    the number of rounds. Programs that failed, or that the space no longer has, are left as they
    are.
    """
    jobs = _jobs(store, task, shop)
    before: Collection[str] = ()
    for made in range(most):
        few = [d for d in jobs if len(store.rounds[d]) < LEAST]
        near = store.near(NEAR) & jobs.keys()
        if not few and near == before:
            return made
        before = () if few else near
        order = few or sorted(store.near(CONTENDING) & jobs.keys())
        turn = order[:: -1 if made % 2 else 1]
        numbered = dict(enumerate(turn))
        asked = (replace(jobs[d], number=n) for n, d in numbered.items())
        for number, found in shop.measured(asked):
            store.again(numbered[number], found)
    return most


def _jobs(store: MeasuredStore, task: Task, shop: Workshop) -> dict[str, Job]:
    """The program of each candidate of a store that succeeded, built again; by digest."""
    points: list[Numbered] = []
    digests = [d for d, taken in store.times.items() if taken < inf]
    for number, digest in enumerate(digests):
        try:
            points.append((number, task.schedule(store.candidates[digest])))
        except ScheduleError:
            continue
    built = shop.built(task, points)
    return {digests[n]: made for n, made in built if isinstance(made, Job)}


def main() -> None:
    """Writes the features and the seconds of each store's first programs to one file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("stores", type=Path, nargs="+")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--programs", type=int, default=64)
    asked = parser.parse_args()
    found: dict[str, Any] = {"features": Fast.version}
    for path in asked.stores:
        lines = path.read_text().splitlines()[: asked.programs]
        rows = [row for row in map(json.loads, lines) if row["seconds"] is not None]
        found[path.stem] = {
            "rows": np.stack([unpacked(row["features"]) for row in rows]),
            "seconds": np.array([row["seconds"] for row in rows]),
        }
    stored.write(asked.out, RECORDED, found)


if __name__ == "__main__":
    main()
