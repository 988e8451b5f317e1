"""The programs of a task's candidates: each schedule is made once, and rejections are cached."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.canonical import canonical_tree
from tilewright.loops.nodes import For, Kernel
from tilewright.loops.walk import walk
from tilewright.schedule.space import Parameter, Point
from tilewright.tune.base import Candidate, Task

T = TypeVar("T")
PROGRAMS: Final = 4096  # cached; a Kernel takes about ten kilobytes
POINTS: Final = 256  # cached completely, with the history of their schedules


@dataclass(frozen=True, eq=False, slots=True)
class ScheduledProgram:
    """The program of a candidate.

    candidate: with a value for every parameter on its path. identity: equal for programs that are
    equal up to loop names.
    """

    candidate: Candidate
    parameters: tuple[Parameter, ...]
    kernel: Kernel
    identity: str


class ProgramMaker:
    """Makes schedules on demand. made: how many so far, rejected ones included."""

    def __init__(self, task: Task) -> None:
        self.task: Final = task
        self.made = 0
        self._programs: OrderedDict[str, ScheduledProgram] = OrderedDict()
        self._points: OrderedDict[str, Point] = OrderedDict()
        self._refused: dict[str, ScheduleError] = {}

    def find(self, candidate: Candidate) -> ScheduledProgram | None:
        """The program of a candidate; None if a primitive rejects it."""
        found = self._programs.get(candidate.key)
        if found is None and candidate.key not in self._refused:
            try:
                found = self._made(candidate)
            except ScheduleError as error:
                self._refused[candidate.key] = error
        return found

    def point(self, candidate: Candidate) -> Point:
        """The schedule of a candidate. Raises ScheduleError if a primitive rejects it."""
        if candidate.key in self._refused:
            raise self._refused[candidate.key]
        if candidate.key not in self._points:
            self._made(candidate)
        return self._points[candidate.key]

    def _made(self, candidate: Candidate) -> ScheduledProgram:
        self.made += 1
        point = self.task.schedule(candidate)
        kernel = self.task.program(point)
        whole = Candidate(point.sketch, point.values)
        found = ScheduledProgram(whole, point.parameters, kernel, identity(kernel))
        _keep(self._programs, candidate.key, found, PROGRAMS)
        if whole.key != candidate.key:
            _keep(self._programs, whole.key, found, PROGRAMS)
        _keep(self._points, candidate.key, point, POINTS)
        return found


def _keep(kept: OrderedDict[str, T], key: str, value: T, most: int) -> None:
    kept[key] = value
    while len(kept) > most:
        kept.popitem(last=False)


def identity(kernel: Kernel) -> str:
    """A text that is equal for programs that differ only in names."""
    loops = [p.stmt.var.name for p in walk(kernel.body) if isinstance(p.stmt, For)]
    notes = [sorted(kernel.notes.get(name, {}).items()) for name in loops]
    return f"{canonical_tree(kernel.body, kernel.params)}\n{notes}"


def outline(kernel: Kernel, depth: int) -> str:
    """The kinds and extents of a kernel's loops down to a depth: its coarse structure."""
    shown = []
    for place in walk(kernel.body):
        level = len(place.loops)
        if isinstance(place.stmt, For) and level < depth:
            shown.append(f"{level}{place.stmt.kind}{place.stmt.extent}")
    return " ".join(shown)
