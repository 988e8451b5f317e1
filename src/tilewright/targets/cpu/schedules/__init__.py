"""Default schedules of the CPU: one sketch per kind of kernel, numbers from the machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.base import events
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.targets.cpu.machine import Machine
from tilewright.targets.cpu.schedules.attention import attention
from tilewright.targets.cpu.schedules.classify import classify
from tilewright.targets.cpu.schedules.maps import maps
from tilewright.targets.cpu.schedules.plain import plain
from tilewright.targets.cpu.schedules.rows import rows
from tilewright.targets.cpu.schedules.tiled import tiled


def default(
    kernel: Kernel,
    computations: Sequence[Computation],
    machine: Machine,
    constants: Collection[Buffer],
    exact: bool = False,
) -> Schedule:
    """The schedule of a kernel without tuning; `exact` keeps every reduction in its order.

    A sketch that a primitive refuses gives way to the plain schedule; the event `sketch-refused`
    carries the reason.
    """
    kind = classify(computations)
    try:
        if kind.name == "tiled":
            return tiled(kernel, kind, machine, constants, exact)
        if kind.name == "map":
            return maps(kernel, computations[0], machine)
        if kind.name == "attention" and not exact:
            return attention(kernel, kind, machine, constants)
        if kind.name == "rows" and not exact:
            return rows(kernel, computations, machine)
    except ScheduleError as error:
        events.emit("sketch-refused", kernel=kernel.name, sketch=kind.name, reason=str(error))
    return plain(kernel, computations, machine)
