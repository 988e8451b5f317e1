"""Random GPU schedules: random legal bindings of a program's loops to blocks and threads.

After a few primitives of any kind, loops are bound, buffers staged in shared memory by several
threads, or moved between shared memory and registers. Rejected steps are skipped.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tilewright.base.errors import ScheduleError
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.nodes import (
    GPU_AXES,
    Alloc,
    For,
    Kernel,
)
from tilewright.loops.walk import StatementPlace, loops_of, walk
from tilewright.schedule import Schedule
from tilewright.testing.random_schedules import random_schedule

BLOCKS: Final = tuple(axis for axis in GPU_AXES if axis.startswith("blockIdx"))
THREADS: Final = tuple(axis for axis in GPU_AXES if axis.startswith("threadIdx"))


def random_launch(r: random.Random, kernel: Kernel) -> Kernel:
    """The kernel, scheduled and bound to the axes of a GPU at random."""
    tries = r.randint(0, 6)
    s = random_schedule(r, kernel, tries)
    for change in r.choices(_CHANGES, k=r.randint(4, 12)):
        try:
            change(r, s)
        except ScheduleError:
            continue
    return s.kernel


def _loops(s: Schedule) -> list[StatementPlace]:
    return [at for at in walk(s.kernel.body) if isinstance(at.stmt, For)]


def _bind(r: random.Random, s: Schedule) -> None:
    at = r.choice(_loops(s))
    assert isinstance(at.stmt, For)
    kinds = {f.kind for f in at.loops}
    is_outer = all(isinstance(x, Alloc) or x in at.loops for x in at.above)
    if kinds.issubset(BLOCKS) and is_outer and r.random() < 0.4:
        axes = BLOCKS
    else:
        axes = THREADS
    free = [axis for axis in axes if axis not in kinds]
    if free and (axes is BLOCKS or not _shares(at)):
        s.bind(at.stmt.var.name, r.choice(free))


def _bind_all(r: random.Random, s: Schedule) -> None:
    """Several loops, from the outside in, which random choices seldom produce."""
    for at in _loops(s):
        assert isinstance(at.stmt, For)
        taken = [f.kind for f in at.loops]
        if r.random() < 0.4 or (taken and _shares(at)):
            continue
        name = r.choice(["threadIdx.x", "threadIdx.y"] if taken else ["blockIdx.x"])
        try:
            s.bind(at.stmt.var.name, name)
        except ScheduleError:
            continue


def _stage(r: random.Random, s: Schedule) -> None:
    """A copy in shared memory, fetched by many threads."""
    at = r.choice([at for at in _loops(s) if not _threads(at)])
    assert isinstance(at.stmt, For)
    inside = sorted(b.name for b in reads(at.stmt) - writes(at.stmt))
    tensor = r.choice(inside or ["X"])
    new = s.cache_read(tensor, at.stmt.var.name, "shared")
    _bind_copies(r, s, new)


def _accumulate(r: random.Random, s: Schedule) -> None:
    at = r.choice(_loops(s))
    assert isinstance(at.stmt, For)
    inside = sorted(b.name for b in writes(at.stmt))
    scope = r.choice(["register", "shared", "stack"])
    tensor = r.choice(inside or ["Y"])
    new = s.cache_write(tensor, at.stmt.var.name, scope)
    _bind_copies(r, s, new)


def _bind_copies(
    r: random.Random,
    s: Schedule,
    new: str,
) -> None:
    for f in loops_of(s.kernel.body):
        if f.var.name.startswith(f"{new}.") and r.random() < 0.7:
            s.bind(f.var.name, r.choice(THREADS[:2]))


def _move(r: random.Random, s: Schedule) -> None:
    scope = r.choice(["register", "shared", "global"])
    for at in walk(s.kernel.body):
        if isinstance(at.stmt, Alloc) and at.loops and r.random() < 0.5:
            if scope != "shared" or not _threads(at):
                s.set_scope(at.stmt.buffer.name, scope)


def _shares(at: StatementPlace) -> bool:
    """Whether shared memory is allocated inside a loop."""
    found = (p.stmt for p in walk(at.stmt))
    return any(isinstance(x, Alloc) and x.buffer.scope == "shared" for x in found)


def _threads(at: StatementPlace) -> bool:
    return any(f.kind in THREADS for f in at.loops)


_CHANGES: Final[tuple[Callable[[random.Random, Schedule], None], ...]] = (
    _bind,
    _bind,
    _bind_all,
    _bind_all,
    _stage,
    _accumulate,
    _move,
)
