"""The space of a program that is not scheduled: what a target's sketches make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Var
from tilewright.lang.te.build import arguments, inputs_first, unscheduled
from tilewright.lang.te.parts import has_calls
from tilewright.lang.te.schedule import Schedule
from tilewright.lang.te.syntax.nodes import Tensor
from tilewright.targets import registry
from tilewright.tune.space import SketchSpace


def sketch_space(
    s: Schedule,
    args: Sequence[Tensor],
    target: str = "cpu",
    name: str | None = None,
    *,
    description: Mapping[str, Any] | None = None,
    sizes: Mapping[Var, int] | None = None,
) -> SketchSpace:
    """The schedules among which `build(..., auto=True)` takes the default.

    Raises ScheduleError for a schedule with lines and for a program that calls functions,
    InputError for tensors that are missing and for a target without sketches.
    """
    params = inputs_first(arguments(s, args))
    if any(stage.touched or stage.attach for stage in s.stages) or has_calls(s.stages):
        raise ScheduleError(
            "sketches schedule a whole kernel, but this schedule has lines or calls",
            where="sketch_space",
            hint="build a fresh create_schedule(...), or write a template",
        )
    machine = registry.target(target, description=description)
    plain, computations = unscheduled(s, params, machine, name, sizes or {})
    return SketchSpace(machine.sketches(plain, computations, ()))
