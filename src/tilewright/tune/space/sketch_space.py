"""The space of a kernel's sketches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.schedule import Schedule
from tilewright.schedule.space import Choices, Point, Sketch
from tilewright.schedule.step_cache import StepCache
from tilewright.tune.base import Candidate
from tilewright.tune.space.choice_space import ChoiceSpace


class SketchSpace(ChoiceSpace[Schedule]):
    """The schedules that a kernel's sketches make, except those that primitives reject.

    For the sampling distribution see `ChoiceSpace`. Raises InputError for no sketches.
    """

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        # Candidates share their first steps, even across sketches.
        self.steps = StepCache()
        super().__init__({s.name: partial(self._run, s) for s in sketches})

    def _run(self, sketch: Sketch, choices: Choices) -> Schedule:
        with self.steps.used():
            return sketch.run(choices)

    def schedule(self, candidate: Candidate) -> Point:
        """The schedule of a candidate, as `Task.schedule`.

        Raises ScheduleError if the candidate is not in the space or a primitive rejects it.
        """
        made = self.made(candidate)
        return Point(made.result, made.parameters, candidate.sketch)
