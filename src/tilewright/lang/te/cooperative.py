"""Cooperative fetching: what a block's threads share is filled by all of them, then read.

In the loop IR a loop over threads is a phase: all threads go through it before the next begins.
What is placed in shared memory inside the loops over the threads that read it, as TVM's
schedules have it, is therefore placed between phases: the loops around its place go out of those
over threads, which part around them, and what a thread keeps meanwhile has an element for each.

    for tx in 8: { alloc c[4]: c = 0; for k: { HERE; c += f(k) }; out[tx] = c }

becomes

    alloc c[8, 4]: { for tx in 8: c[tx] = 0
                     for k: { HERE; for tx in 8: c[tx] += f(k) }
                     for tx in 8: out[tx] = c[tx] }
"""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.loops.analysis.terms import loads
from tilewright.loops.nodes import Alloc, For, If, Stmt
from tilewright.loops.walk import StatementPlace
from tilewright.schedule import Schedule
from tilewright.schedule.primitives.fission import statements
from tilewright.schedule.tree import find_loop


def part_threads(
    s: Schedule, loop: str, threads: set[str]
) -> tuple[str, list[tuple[str, str]]]:
    """Bring the loops over threads around `loop` inside it; the loop to place at then.

    threads: the loops that will be bound to threads, to which those are added that they become:
    the second result, with the loop that each was before. For a loop over threads itself the place
    is outside all of them. Raises ScheduleError where the loops cannot be parted.
    """
    made: list[tuple[str, str]] = []
    if loop in threads:
        return _outside(s, loop, threads), made
    while True:
        _, place = find_loop(s.kernel, loop, _VERB)
        around = [f.var.name for f in (*place.loops, place.stmt) if isinstance(f, For)]
        first = next((n for n, x in enumerate(around) if x in threads), None)
        if first is None:
            return loop, made
        moving = next(n for n in range(first, len(around)) if around[n] not in threads)
        parted: list[str] = []
        child = around[moving]
        for name in reversed(around[first:moving]):
            _keep(s, name, child)
            child = _alone(s, name, child, made)
            parted.insert(0, child)
        threads.update(new for _, new in made)
        s.reorder(around[moving], *parted)


_VERB = "compute_at"


def _outside(s: Schedule, loop: str, threads: set[str]) -> str:
    """The loop directly around all loops over threads; the loop itself where there is none."""
    _, place = find_loop(s.kernel, loop, _VERB)
    names = [f.var.name for f in (*place.loops, place.stmt) if isinstance(f, For)]
    first = next(n for n, x in enumerate(names) if x in threads)
    return names[first - 1] if first else loop


def _keep(s: Schedule, name: str, child: str) -> None:
    """Give each iteration of a loop its own elements of the buffers allocated in it around
    `child`."""
    while True:
        _, place = find_loop(s.kernel, child, _VERB)
        inside = _below(place, name)
        buffers = [x.buffer.name for x in inside if isinstance(x, Alloc)]
        if not buffers:
            return
        s.expand(buffers[0], name)


def _below(place: StatementPlace, name: str) -> list[object]:
    """What is around a statement inside a loop, outermost first."""
    found = [n for n, x in enumerate(place.above) if _is_loop(x, name)]
    return list(place.above[found[0] + 1 :])


def _is_loop(stmt: object, name: str) -> bool:
    return isinstance(stmt, For) and stmt.var.name == name


def _guarded(stmt: Stmt) -> Stmt:
    """What is under the guards of a statement that read no memory."""
    while isinstance(stmt, If) and stmt.otherwise is None:
        if loads(stmt.condition):
            break
        stmt = stmt.then
    return stmt


def _alone(s: Schedule, name: str, child: str, made: list[tuple[str, str]]) -> str:
    """Part a loop so that one part has `child` alone for its body: that part."""
    f, _ = find_loop(s.kernel, name, _VERB)
    parts = statements(f.body)
    at = next((n for n, x in enumerate(parts) if _is_loop(_guarded(x), child)), None)
    if at is None:
        raise ScheduleError(
            f"{_VERB}: loop {child} is under a condition in the loop {name} over threads, "
            "which reads memory or has another side",
            where=f"loop {child}",
            hint="compute it at a loop over blocks",
        )
    own = name
    if at > 0:
        own = s.fission(name, at)
        made.append((name, own))
    if at + 1 < len(parts):
        made.append((name, s.fission(own, 1)))
    return own
