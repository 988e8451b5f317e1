"""The schedule that always applies: vectors and threads wherever a primitive allows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.targets.cpu.machine import Machine
from tilewright.targets.cpu.schedules.classify import free_dims
from tilewright.targets.cpu.schedules.nest import existing, vectorize_inner

PARALLEL_POINTS = 65_536


def plain(kernel: Kernel, computations: Sequence[Computation], machine: Machine) -> Schedule:
    """Each nest on its own: its last free dimension in vectors, its first on all threads."""
    s = Schedule(kernel)
    for c in computations:
        loops = existing(s, [f"{c.name}.{d.var.name}" for d in free_dims(c)])
        if not loops:
            continue
        points = math.prod(d.extent for d in c.dims)
        if len(loops) > 1 and points >= PARALLEL_POINTS:
            s = _attempt(s, partial(Schedule.parallel, loop=loops[0]))
        if c.is_map:
            lanes = machine.lanes(c.outputs[0].tensor.dtype)
            s = _attempt(s, partial(vectorize_inner, name=loops[-1], lanes=lanes))
    return s


def _attempt(s: Schedule, step: Callable[[Schedule], None]) -> Schedule:
    trial = s.fork()
    try:
        step(trial)
    except ScheduleError:
        return s
    return trial
