"""The space of a program that is scheduled by parameters: a te template, an MDH expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.base.errors import InputError, ScheduleError
from tilewright.schedule import Schedule
from tilewright.schedule.space import Point
from tilewright.schedule.space.choices import IMPOSSIBLE
from tilewright.schedule.space.choices import Parameter as Chosen
from tilewright.tune.base import Candidate
from tilewright.tune.space.parameter import Parameter
from tilewright.tune.space.parameter_space import ParameterSpace


class ProgramSpace(ParameterSpace):
    """Parameters, and the schedule of a program that their values make.

    name: of the program. make: maps values to a schedule; raises ScheduleError if a primitive
    rejects them.
    """

    def __init__(
        self,
        name: str,
        parameters: Iterable[Parameter],
        make: Callable[[Mapping[str, Any]], Schedule],
    ) -> None:
        super().__init__(*parameters)
        self.name = name
        self._make = make

    def schedule(self, candidate: Candidate) -> Point:
        """The schedule of a candidate, as `Task.schedule`.

        Raises ScheduleError if the candidate is not in the space or a primitive rejects it.
        """
        try:
            self.index(candidate)
        except InputError as error:
            raise ScheduleError(
                error.message, code=IMPOSSIBLE, where=error.where, hint=error.hint
            ) from error
        made = []
        values: dict[str, Any] = {}
        for node, place in self.path(candidate):
            own = node.parameter
            value = values[own.name] = node.values[place]
            default = node.values[0] if own.default is None else own.default
            made.append(Chosen(own.name, tuple(node.values), default, value))
        return Point(self._make(values), tuple(made), candidate.sketch)

    def makes(self, schedule: Schedule) -> bool:
        """Whether a schedule is exactly that of the defaults."""
        return schedule.trace == self.schedule(self.default()).schedule.trace
