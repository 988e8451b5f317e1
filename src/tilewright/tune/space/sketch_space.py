"""The space of a kernel's sketches."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.schedule import Schedule
from tilewright.schedule.space import Point, Sketch
from tilewright.tune.base import Candidate
from tilewright.tune.space.choice_space import ChoiceSpace


class SketchSpace(ChoiceSpace[Schedule]):
    """The schedules that the sketches of a kernel make, but for those that primitives refuse.

    How likely each is drawn: see `ChoiceSpace`. Raises InputError for no sketches.
    """

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        super().__init__({sketch.name: sketch.run for sketch in sketches})

    def schedule(self, candidate: Candidate) -> Point:
        """The schedule of a candidate, as `Task.schedule` has it.

        Raises ScheduleError for one that is not in the space, or that a primitive refuses.
        """
        made = self.made(candidate)
        return Point(made.result, made.parameters, candidate.sketch)
