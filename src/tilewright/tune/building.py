"""From schedules to jobs: built in this process, or in others ahead of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from tilewright.base.errors import TilewrightError
from tilewright.schedule.space import Point
from tilewright.tune.base import Job, Measurement, Status, Task
from tilewright.tune.measure.builder import Builder

Numbered = tuple[int, Point]
Built = tuple[int, Job | Measurement]
# Makes jobs of points, with the task's reference; a Measurement where no code can be made.
Build = Callable[[Task, Iterable[Numbered]], Iterator[Built]]


def build_here(task: Task, points: Iterable[Numbered]) -> Iterator[Built]:
    """Builds in this process, one program when the next is asked for; nothing is compared."""
    for number, point in points:
        start = time.monotonic()
        try:
            made = task.build(point)
        except TilewrightError as error:
            yield number, Measurement(Status.BUILD, reason=str(error))
        else:
            yield number, Job(number, made, build_seconds=time.monotonic() - start)


class BuildAhead:
    """Builds with a Builder, and remembers the reference of each task."""

    def __init__(self, builder: Builder) -> None:
        self._builder: Final = builder
        self._references: dict[str, bytes] = {}

    def __call__(self, task: Task, points: Iterable[Numbered]) -> Iterator[Built]:
        """In the order in which they are finished. Raises what `Task.reference` raises."""
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
