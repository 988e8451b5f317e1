"""Measured times of operators' programs, in a file: each program is measured once, for all runs.

A line for each program, written as soon as it is measured: a killed run resumes. Programs that are
equal up to names share a line.

    python -m benchmarks.search_store FOLDER/product_256.jsonl ... -o recorded.json

writes features and times for the tests of cost models.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

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
                seconds = row["seconds"]
                self.times[str(row["program"])] = inf if seconds is None else seconds
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"line {number} is not a measured program: {error!r}",
                    where=str(self.path),
                    hint="remove it; all others can be read",
                ) from error

    @property
    def best(self) -> float:
        """The least seconds of all."""
        return min(self.times.values(), default=inf)

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
        self.times[digest] = found.seconds
        seconds = None if found.seconds == inf else found.seconds
        row = {"program": digest, "seconds": seconds, "key": key}
        row["features"] = features
        if seconds is None:
            row["reason"] = f"{found.status}: {found.reason}"
        with self.path.open("a") as file:
            print(json.dumps(row), file=file)


def program_of(task: Task, point: Point) -> str:
    """A digest that programs share which are equal up to names."""
    text = identity(task.program(point))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
        for number, made in self._build(task, points):
            if isinstance(made, Job):
                jobs.append(made)
            else:
                yield number, made
        yield from self._runner.measure(jobs)


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
