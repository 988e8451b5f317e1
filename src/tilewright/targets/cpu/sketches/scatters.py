"""Scatters on all threads: each thread has its own results, which are combined afterwards."""

from __future__ import annotations

import math

from tilewright.compute.reducer import is_sum
from tilewright.expr.nodes import fixed
from tilewright.expr.reads import reads_memory
from tilewright.loops.nodes import For, Update
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.schedule.space.nest import vectorize_inner
from tilewright.targets.cpu.sketches.context import Context


def scatter_of(f: For, at: Context) -> Update | None:
    """The one scatter that a loop is, if its steps may be taken in another order; else None.

    The sum of many narrow floats is too rough for its order not to show.
    """
    updates = [p.stmt for p in walk(f) if isinstance(p.stmt, Update)]
    if len(updates) != 1:
        return None
    (update,) = updates
    reads = any(reads_memory(i) for index in update.indices for i in index)
    floats = [b.dtype for b in update.buffers if b.dtype.is_float]
    ordered = any(at.exact or dtype.bits < 32 for dtype in floats)
    return update if reads and update.reducer.commutative and not ordered else None


def worth_parts(f: For, update: Update, at: Context) -> bool:
    """Whether the steps take so much longer than clearing and combining the threads' partial
    results that waking the threads is profitable."""
    (loops,) = (p.loops for p in walk(f) if p.stmt is update)
    trips = [x.trips for x in loops]
    if any(n is None for n in trips):
        return False
    costs, parts = at.costs, at.machine.cores
    step_ns = costs.point_ns if loops[-1].kind == "vector" else costs.step_ns
    work = math.prod(n or 0 for n in trips) * step_ns
    elements = sum(fixed(b.size, f"buffer {b.name}") for b in update.buffers)
    added = 2 * parts * elements * costs.point_ns
    return costs.worth_sharing(work) and added < work * (1 - 1 / parts)


def share_scatter(s: Schedule, f: For, update: Update, at: Context) -> None:
    """Split the loop into a part per thread with private results; sums are combined in vectors.
    Raises ScheduleError if a primitive refuses."""
    name, trips = f.var.name, f.trips or 1
    size = math.ceil(trips / at.machine.cores)
    outer, *_ = s.split(name, size, "exact" if trips % size == 0 else "guard")
    whole = update.buffers[0]
    own, *_ = s.rfactor(outer, "global", buffer=whole.name)
    s.parallel(outer)
    if is_sum(update.reducer):
        last = len(whole.shape) - 1
        for row in (f"{own}.c{last}", f"{own}.m{last}"):
            vectorize_inner(s, row, at.machine.lanes(whole.dtype), tail="guard")
