"""The schedule that always applies: vectors and threads wherever a primitive allows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from tilewright.base.errors import ScheduleError
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    VECTORS,
    existing,
    vectorize_inner,
    written_out,
)
from tilewright.schedule.space.patterns import KernelPattern, free_dims, reduction_dims
from tilewright.targets.cpu.sketches.context import Context


def plain(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """Each nest on its own: its last free dimension in vectors, its first on all threads.

    parameters: `<computation>.parallel`, `<computation>.vectors` in flight at a time of a map,
    `<computation>.unroll` of a reduction.
    """
    for c in pattern.computations:
        loops = existing(s, [f"{c.name}.{d.var.name}" for d in free_dims(c)])
        if not loops:
            continue
        points = math.prod(d.extent for d in c.dims)
        threads = len(loops) > 1 and at.costs.worth_sharing(points * at.costs.point_ns)
        if at.threads(choose, c.name, threads):
            s = _attempt(s, partial(Schedule.parallel, loop=loops[0]))
        if c.is_map:
            lanes = at.machine.lanes(c.outputs[0].tensor.dtype)
            unrolled = choose(f"{c.name}.vectors", VECTORS, 1)
            inner = partial(
                vectorize_inner, name=loops[-1], lanes=lanes, unrolled=unrolled
            )
            s = _attempt(s, inner)
        else:
            inside = [f"{c.name}.{d.var.name}" for d in reduction_dims(c)]
            written_out(s, inside, choose, c.name)
    return s


def _attempt(s: Schedule, step: Callable[[Schedule], object]) -> Schedule:
    trial = s.fork()
    try:
        step(trial)
    except ScheduleError:
        return s
    return trial
