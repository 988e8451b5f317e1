"""From schedules to jobs: built in this process, or ahead of time in others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from tilewright.base.errors import TilewrightError
from tilewright.schedule.space import Point
from tilewright.tune.base import Job, Measurement, Status, Task
from tilewright.tune.measure.builder import ProgramBuilder

Numbered = tuple[int, Point]
Built = tuple[int, Job | Measurement]
# Builds points into jobs, with the task's reference; yields a Measurement if a build fails.
Build = Callable[[Task, Iterable[Numbered]], Iterator[Built]]


def build_here(task: Task, points: Iterable[Numbered]) -> Iterator[Built]:
    """Build in this process, each program on demand; results are not compared."""
    for number, point in points:
        start = time.monotonic()
        try:
            made = task.build(point)
        except TilewrightError as error:
            yield number, Measurement(Status.BUILD, reason=str(error))
        else:
            yield number, Job(number, made, build_seconds=time.monotonic() - start)


class BuildAhead:
    """Builds with a Builder, and caches the reference of each task."""

    def __init__(self, builder: ProgramBuilder) -> None:
        self._builder: Final = builder
        self._references: dict[str, bytes] = {}

    def __call__(self, task: Task, points: Iterable[Numbered]) -> Iterator[Built]:
        """Yield jobs in order of completion. Raises what `Task.reference` raises."""
        if task.key not in self._references:
            self._references[task.key] = task.reference()
        expected = self._references[task.key]
        jobs = ((number, partial(task.build, point)) for number, point in points)
        for number, made in self._builder.build(jobs):
            if made.failure:
                failed = Measurement(
                    Status.BUILD, reason=made.failure, build_seconds=made.seconds
                )
                yield number, failed
            else:
                yield number, Job(number, made.data, expected, made.seconds)
