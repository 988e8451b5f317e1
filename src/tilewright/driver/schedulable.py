"""A program of a notation whose schedule is not fixed: a record's schedule, or the usual one.

Its space comes from the author's parameters (a template, MDH's parts) or the target's sketches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, TilewrightError
from tilewright.compute.nodes import Computation
from tilewright.driver.build_kernel import signature_of
from tilewright.driver.chosen_schedules import refuse
from tilewright.driver.compilation import target_of
from tilewright.driver.options import Options
from tilewright.driver.schedule_records import ScheduleRecord, of_point
from tilewright.driver.tasks import task_of_kernel
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.plan.identity import with_names
from tilewright.plan.normalize import KernelSignature
from tilewright.runtime.threads import thread_count
from tilewright.schedule import Schedule
from tilewright.schedule.space import Point
from tilewright.schedule.space.selection import Selection, selected_point
from tilewright.targets.base import Target
from tilewright.tune.base import Candidate, Task
from tilewright.tune.records.key import Key, key_of
from tilewright.tune.records.published import PublishedChoice
from tilewright.tune.space.program_space import ProgramSpace

Plain = tuple[Kernel, Sequence[Computation]]


@dataclass(frozen=True, eq=False)
class Schedulable:
    """A program on the host, and the space of its schedules.

    plain: returns the unscheduled loop nests and their Computations; called when needed. space: of
    the author's parameters; None: the target's sketches. usual: the schedule without a record, if
    it is neither the target's nor the space's default. options: of `compile`.
    """

    plain: Callable[[], Plain]
    space: ProgramSpace | None = None
    usual: Schedule | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def kernel(self) -> Kernel:
        """The unscheduled loop nests."""
        return self._plain[0]

    @cached_property
    def _plain(self) -> tuple[Kernel, tuple[Computation, ...]]:
        kernel, given = self.plain()
        computations = tuple(given)
        if computations:
            again = lower(kernel.name, computations, kernel.params, kernel.outputs)
            if str(again) != str(kernel):  # a recurrence is not a Computation
                computations = ()
        return kernel, computations

    @cached_property
    def target(self) -> Target:
        """The target to compile for."""
        return target_of(Options.of({**self.options, "records": False}))

    @cached_property
    def signature(self) -> KernelSignature:
        """The interface by which records identify the program."""
        return signature_of(*self._plain)

    @cached_property
    def key(self) -> Key:
        """The key of its records.

        Records of the author's parameters, and records that improve on a `usual` schedule, have
        other keys than those of the sketches.
        """
        chosen = Options.of({**self.options, "records": False})
        fixed = [False] * len(self.signature.values)
        threads = thread_count(chosen.threads)
        found = key_of(self.signature, fixed, self.target, threads, chosen.math)
        said = self._said()
        if not said:
            return found
        digest = hashlib.sha256(f"{found.operator}\n{said}".encode()).hexdigest()
        return replace(found, operator=digest[: len(found.operator)])

    def _said(self) -> str:
        if self.space is not None:
            names = [p.name for p in self.space.parameters]
            default = self.space.schedule(self.space.default()).schedule.kernel
            return f"parameters of {self.space.name}: {names}\n{default}"
        return "" if self.usual is None else f"instead of\n{self.usual.kernel}"

    def task(self) -> Task:
        """The task to tune. Raises InputError if sizes are known only at run time."""
        kernel, computations = self._plain
        own: dict[str, Any] = {}
        if self.space is not None:
            own = {"space": self.space, "schedule": self.space.schedule}
        options = {**self.options, "records": False}
        made = task_of_kernel(kernel, computations=computations, **own, **options)
        return replace(made, key=self.key.text)

    def point(self, candidate: Candidate) -> Point:
        """The schedule of a candidate. Raises ScheduleError if it is not possible."""
        if self.space is not None:
            return self.space.schedule(candidate)
        kernel, computations = self._plain
        sketches = self.target.sketches(kernel, computations, ())
        values = with_names(candidate.values, self.signature)
        return selected_point(
            kernel.name, sketches, Selection(candidate.sketch, values)
        )

    def recorded(self, records: Any = None) -> tuple[Point, PublishedChoice] | None:
        """The schedule of the best record; None if there is none, or if it is not possible.

        records: as for `compile`. Emits the same events as for a model's kernels.
        """
        published = Options.of({**self.options, "records": records}).published
        if not published.digest:
            return None
        try:
            found = published.choices.get(self.key.digest)
        except TilewrightError:
            return None  # not made of maps and reductions: there can be no record
        if found is None:
            return None
        try:
            point = self.point(Candidate.parse(found.candidate))
        except ScheduleError as error:
            refuse(self.kernel.name, found, error)
            return None
        events.emit(
            "record-used", kernel=self.kernel.name, gain=found.gain, time=found.time
        )
        return point, found

    def account(
        self, point: Point, found: PublishedChoice | None = None
    ) -> ScheduleRecord:
        """An account of the schedule at a point, for display. found: the record it comes from."""
        sketches: Sequence[str] = ()
        if self.space is None:
            known = self.target.sketches(*self._plain, ())
            sketches = [sketch.name for sketch in known]
        return of_point(self.kernel.name, point, sketches, found)
