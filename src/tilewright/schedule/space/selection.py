"""Selecting a point of a kernel's sketches: the default one, or a requested one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.base.text import listing
from tilewright.schedule.space.choices import IMPOSSIBLE, Point, Sketch, Values


@dataclass(frozen=True, slots=True)
class Selection:
    """A requested schedule: a sketch by name (None: the one that the default takes), and
    values of its parameters; the others keep their defaults.

    source: what the values were translated from, where they name tensors of one kernel only. Equal
    sources are equal schedules of equal kernels.
    """

    sketch: str | None = None
    values: Values = field(default_factory=dict)
    source: str = ""

    @staticmethod
    def of(given: Values) -> Selection:
        """Values by name, with that of the sketch as `sketch`."""
        values = {k: v for k, v in given.items() if k != "sketch"}
        return Selection(given.get("sketch"), values)


def legal_point(kernel: str, sketch: Sketch) -> Point | None:
    """The default point of a sketch; None if a primitive refuses it: the event `sketch-refused`
    carries the reason."""
    try:
        return sketch.default()
    except ScheduleError as error:
        events.emit(
            "sketch-refused", kernel=kernel, sketch=sketch.name, reason=str(error)
        )
        return None


def default_point(kernel: str, sketches: Sequence[Sketch]) -> Point:
    """The default point of the first sketch that no primitive refuses; the last one applies always.

    Events: those of `legal_point`, and `sketch-chosen` with the name of the chosen one.
    """
    *first, last = sketches
    legal = (legal_point(kernel, sketch) for sketch in first)
    made = next((point for point in legal if point is not None), None)
    if made is None:
        made = last.default()
    events.emit("sketch-chosen", kernel=kernel, sketch=made.sketch)
    return made


def selected_point(kernel: str, sketches: Sequence[Sketch], wanted: Selection) -> Point:
    """The requested point.

    Raises ScheduleError for a sketch that the kernel does not have, an unused parameter, an
    impossible value, or if a primitive refuses.
    """
    name = wanted.sketch
    if name is None and sketches:
        point = default_point(kernel, sketches)
        if not wanted.values:
            return point
        name = point.sketch
    found = next((s for s in sketches if s.name == name), None)
    if not sketches:
        raise ScheduleError(
            "its target has no sketches for it",
            code=IMPOSSIBLE,
            hint="leave out its schedule",
        )
    if found is None:
        known = listing([s.name for s in sketches])
        raise ScheduleError(
            f"there is no sketch {name!r}",
            code=IMPOSSIBLE,
            hint=f"its sketches are {known}",
        )
    return found.at(wanted.values)
