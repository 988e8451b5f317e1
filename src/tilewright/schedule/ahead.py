"""Prefetching as the notations say it, iterations of a loop ahead, as notes at vector loops."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Load
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import expressions
from tilewright.loops.nodes import PREFETCH
from tilewright.loops.walk import StatementPlace, walk
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.space.patterns import address, stride


def prefetch_ahead(s: Schedule, buffer: str, loop: str, iterations: int) -> None:
    """Note at each vector loop that loads a buffer how far ahead it fetches memory.

    That is as many bytes as `iterations` of `loop` continue in the buffer. A note changes no
    result.
    Raises ScheduleError where no vector loop inside the loop, or that loop itself, loads
    neighbors of the buffer, and where one of them has a note already.
    """
    found: dict[str, int] = {}
    for at in walk(s.kernel.body):
        for e in expressions(at.stmt):
            for load in (n for n in postorder(e) if isinstance(n, Load)):
                if load.buffer.name == buffer:
                    _note(at, load, loop, iterations, found)
    if not found:
        raise ScheduleError(
            f"prefetch: no vector of {buffer} is loaded inside {loop}",
            where=f"loop {loop}",
            hint="vectorize the loop along its rows, and name a loop around that moves in it",
        )
    for vector, ahead in found.items():
        noted = s.kernel.notes.get(vector, {}).get(PREFETCH, ahead)
        if noted != ahead:
            raise ScheduleError(
                f"prefetch: {vector} fetches {noted} bytes ahead already",
                where=f"loop {loop}",
                hint="one distance for each vector loop",
            )
        s.annotate(vector, PREFETCH, ahead)


def _note(
    at: StatementPlace, load: Load, loop: str, iterations: int, found: dict[str, int]
) -> None:
    loops = {f.var.name: f for f in at.loops}
    vectors = [f for f in at.loops if f.kind == "vector"]
    if loop not in loops or not vectors or not load.buffer.static:
        return
    vector = vectors[-1]
    form = address(load)
    step = stride(form, loops[loop].var)
    if stride(form, vector.var) != 1 or not step:
        return
    bytes_ahead = step * iterations * load.dtype.itemsize
    found.setdefault(vector.var.name, bytes_ahead)
