"""The parameters of a sketch, chosen one by one while it runs.

A sketch is a function that schedules a kernel. At each choice it requests a value by name, with the
list of possible values. Earlier choices are already made, so the list has exactly the values that
are possible with them: tiles that divide the remaining extent, vectors that still fit the
registers. (A space defined at run time, as in MetaSchedule; the lists express the constraints of
ATF's interdependent parameters.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.schedule.schedule import Schedule

T = TypeVar("T")
Values = Mapping[str, Any]
IMPOSSIBLE = "TW-PARAMETER"  # the code of the error about a value that is not offered


@dataclass(frozen=True, slots=True)
class Parameter:
    """A recorded choice: the candidates, the default without tuning, and the value taken."""

    name: str
    candidates: tuple[Any, ...]
    default: Any
    value: Any


Pick = Callable[[str, Sequence[Any], Any], Any]


def by_default(name: str, candidates: Sequence[Any], default: Any) -> Any:
    """The value that is good without tuning."""
    return default


@dataclass(slots=True)
class Choices:
    """Answers a sketch's questions: with the value `given` for a name, else by `pick`."""

    given: Values = field(default_factory=dict)
    pick: Pick = by_default
    met: list[Parameter] = field(default_factory=list)

    def __call__(self, name: str, candidates: Sequence[T], default: T) -> T:
        """The value of the parameter `name`, one of `candidates` or `default`.

        A default may come from a machine description, which knows no candidates. Raises
        ScheduleError for a given value that is not possible here. A name that was asked for before
        has one value, as that is stored by name: the answer is the same one.
        """
        if default not in candidates:
            candidates = (default, *candidates)
        earlier = next((p for p in self.met if p.name == name), None)
        if earlier is not None:
            return _given(name, earlier.value, candidates)
        if name in self.given:
            value: T = _given(name, self.given[name], candidates)
        else:
            value = self.pick(name, candidates, default)
        self.met.append(Parameter(name, tuple(candidates), default, value))
        return value


def _given(name: str, value: Any, candidates: Sequence[T]) -> T:
    # A value that was stored as JSON has lists for tuples.
    wanted = tuple(value) if isinstance(value, list) else value
    for candidate in candidates:
        if candidate == wanted:
            return candidate
    shown = ", ".join(map(repr, candidates[:12])) + (
        ", ..." if len(candidates) > 12 else ""
    )
    raise ScheduleError(
        f"{value!r} is not possible here",
        code=IMPOSSIBLE,
        where=f"parameter {name}",
        hint=f"take one of {shown}",
    )


@dataclass(frozen=True, slots=True)
class Point:
    """One schedule of a sketch, by name, and the parameters that made it."""

    schedule: Schedule
    parameters: tuple[Parameter, ...]
    sketch: str

    @property
    def values(self) -> dict[str, Any]:
        """The value of every parameter, by name: the argument of `Sketch.at`, and what is
        stored."""
        return {p.name: p.value for p in self.parameters}


@dataclass(frozen=True, slots=True)
class Sketch:
    """A family of schedules of one kernel: every way to answer `run`'s questions.

    name: the rules that made it. run: schedules, asking for each free parameter.
    """

    name: str
    run: Callable[[Choices], Schedule]

    def at(self, values: Values) -> Point:
        """The schedule with these values, and defaults for the parameters that are not named.

        Raises ScheduleError for a value that is not possible, and for a name that is never asked.
        """
        choices = Choices(values)
        schedule = self.run(choices)
        unknown = sorted(set(values) - {p.name for p in choices.met})
        if unknown:
            known = ", ".join(p.name for p in choices.met) or "none"
            raise ScheduleError(
                f"there is no parameter {', '.join(unknown)}",
                where=f"sketch {self.name}",
                hint=f"the parameters are {known}",
            )
        return Point(schedule, tuple(choices.met), self.name)

    def default(self) -> Point:
        """The schedule that is good without tuning."""
        return self.at({})

    def random(self, r: random.Random) -> Point:
        """A schedule with each parameter drawn evenly from its candidates."""
        choices = Choices(pick=lambda name, candidates, default: r.choice(candidates))
        return Point(self.run(choices), tuple(choices.met), self.name)

    def points(self) -> Iterator[Point]:
        """Every schedule, by depth-first search over the parameters; each costs one run."""
        prefix: dict[str, int] = {}
        while True:
            choices = Choices(
                pick=lambda name, candidates, _: candidates[prefix.get(name, 0)]
            )
            yield Point(self.run(choices), tuple(choices.met), self.name)
            while choices.met:
                last = choices.met.pop()
                taken = prefix.pop(last.name, 0)
                if taken + 1 < len(last.candidates):
                    prefix[last.name] = taken + 1
                    break
            else:
                return
