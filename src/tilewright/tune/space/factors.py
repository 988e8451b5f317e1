"""The space of a hand-written schedule: its steps, with other factors where it splits loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.schedule import Schedule
from tilewright.schedule.trace import Step
from tilewright.tune.space.parameter import Parameter
from tilewright.tune.space.program_space import ProgramSpace
from tilewright.tune.space.ranges import Set

SCALES = (1 / 4, 1 / 2, 1, 2, 4)  # multiples of a factor to try


def factors(made: Schedule) -> ProgramSpace | None:
    """The schedules with the same steps and other factors; None if no step splits a loop.

    Each parameter is named after the loop that is split. Factors that a primitive rejects (a tile
    that does not fit, a ring buffer that is too small) are not candidates.
    """
    steps = made.trace.steps
    named = _names(steps)
    parameters = []
    for n, name in named.items():
        factor = steps[n].args[1]
        sizes = {int(factor * k) for k in SCALES if factor * k >= 1}
        parameters.append(Parameter(name, Set(*sorted(sizes)), default=factor))
    if not parameters:
        return None

    def schedule(values: Mapping[str, Any]) -> Schedule:
        other = Schedule(made.original)
        for n, step in enumerate(steps):
            if n in named:
                loop, _, *rest = step.args
                step = replace(step, args=(loop, values[named[n]], *rest))
            other.apply(step)
        return other

    return ProgramSpace(made.kernel.name, parameters, schedule)


def _names(steps: tuple[Step, ...]) -> dict[int, str]:
    """The steps that split by an explicit factor: step index to loop name."""
    found: dict[int, str] = {}
    times: Counter[str] = Counter()
    for n, step in enumerate(steps):
        if step.primitive != "split" or len(step.args) < 2:
            continue
        loop = str(step.args[0])
        times[loop] += 1
        again = f".{times[loop]}" if times[loop] > 1 else ""
        found[n] = f"{loop}{again}"
    return found
