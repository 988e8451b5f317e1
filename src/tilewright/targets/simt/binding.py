"""Loops of a nest on the axes of a GPU: elements over a grid, loops of a block over its threads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tilewright.base.errors import ScheduleError
from tilewright.loops.nodes import Alloc, Block, For, Stmt, Update
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.schedule.space.nest import existing, extents, fuse_all
from tilewright.schedule.tree import find_loop

HELD: Final = 32  # elements at most that a thread accumulates in registers


def bind_elements(s: Schedule, nest: For, threads: int, width: int = 1) -> str:
    """Bind the outer parallel loops of a nest to blocks of `threads` threads.

    Binds as many loops as are still proven independent after fusion: fused indices hide what the
    indices of each loop show. width: iterations of the innermost loop that a thread runs as a
    vector. Returns the loop over threads; empty if there is none.
    """
    if width > 1:
        *around, last = (f.var.name for f in chain(nest))
        groups, lanes = s.split(last, width)
        s.vectorize(lanes)
        nest, _ = find_loop(s.kernel, [*around, groups][0], "bind")
    free: list[For] = []
    for f in chain(nest):
        if not f.trips or f.kind == "vector" or not made_serial(s, f):
            break
        free.append(f)
    done = len(s.trace.steps)
    while free:
        try:
            return _bind_together(s, nest, free, threads)
        except ScheduleError:
            while len(s.trace.steps) > done:
                s.undo()
            free.pop()
    return ""


def independent_outside(s: Schedule, nest: For) -> For:
    """Move the independent loops of a nest to the outside, in their order; the new nest.

    For loops that an operator gives: its vector loops are loops like any other here. So each thread
    scatters into elements of its own, in the order of the program.
    """
    names = [f.var.name for f in chain(nest) if f.kind in ("serial", "vector")]
    for f in chain(nest):
        if f.kind == "vector":
            s.serial(f.var.name)
    nest, _ = find_loop(s.kernel, names[0], "reorder") if names else (nest, None)
    loops = [f for f in chain(nest) if f.var.name in names]
    free = [f.var.name for f in loops if f.trips and made_serial(s, f)]
    order = [*free, *(f.var.name for f in loops if f.var.name not in free)]
    if free and order != names:
        try:
            s.reorder(*order)
        except ScheduleError:
            return nest  # a step needs what steps of the others left
    return find_loop(s.kernel, order[0], "bind")[0] if order else nest


def _bind_together(s: Schedule, nest: For, chain: Sequence[For], threads: int) -> str:
    fused = fuse_all(s, [f.var.name for f in chain])
    assert fused is not None
    accumulate_in_registers(s, nest, fused)
    extent = math.prod(f.trips or 1 for f in chain)
    outer, inner = s.split(fused, min(threads, extent), "guard")
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.x")
    return inner


def accumulate_in_registers(s: Schedule, nest: For, loop: str) -> None:
    """Keep an iteration's accumulators in registers until it is done."""
    updates = (p.stmt for p in walk(nest) if isinstance(p.stmt, Update))
    for b in dict.fromkeys(b for u in updates for b in u.buffers):
        if b.scope == "register":
            continue
        trial = s.fork()
        try:
            name = trial.cache_write(b.name, loop, "register")
        except ScheduleError:
            continue  # its elements are not one box: they stay in memory
        held = (p.stmt for p in walk(trial.kernel.body) if isinstance(p.stmt, Alloc))
        if any(a.buffer.name == name and a.buffer.size <= HELD for a in held):
            s.cache_write(b.name, loop, "register")


def chain(nest: For) -> Iterator[For]:
    """The loops that are directly inside one another."""
    s: Stmt = nest
    while isinstance(s, For):
        yield s
        s = s.body


def made_serial(s: Schedule, f: For) -> bool:
    """Whether the iterations of a loop may run in parallel; if so, it becomes serial until it is
    bound."""
    name = f.var.name
    trial = s.fork()
    try:
        trial.parallel(name)
    except ScheduleError:
        return False
    if f.kind != "serial":
        s.serial(name)
    for key in s.kernel.notes.get(name, {}):
        s.annotate(name, key, None)  # it will be another loop
    return True


def run_at_once(s: Schedule, loop: str) -> None:
    """Make a loop one that can be bound. Raises ScheduleError where iterations need an order."""
    f = next(p.stmt for p in walk(s.kernel.body) if _is(p.stmt, loop))
    assert isinstance(f, For)
    if not made_serial(s, f):
        raise ScheduleError("its iterations need their order", where=f"loop {loop}")


def _is(s: object, loop: str) -> bool:
    return isinstance(s, For) and s.var.name == loop


def over_threads(
    s: Schedule,
    loops: Sequence[str],
    threads: int,
    unrolled: int,
    axis: str = "threadIdx.x",
) -> None:
    """Distribute nested loops over `threads` threads of a block: neighbors get neighboring
    iterations.

    unrolled: the most rounds of a thread that are unrolled.
    """
    loop = fuse_all(s, loops)
    if loop is None or threads == 1:
        return  # each thread does all of it
    extent = extents(s.kernel)[loop]
    if extent > threads:
        rounds, loop = s.split(loop, threads, "guard")
        if extents(s.kernel)[rounds] <= unrolled:
            s.unroll(rounds)
    s.bind(loop, axis)


def fetch_together(
    s: Schedule,
    loops: Sequence[str],
    threads: Mapping[str, int],
    width: int = 1,
    unrolled: int | None = None,
) -> None:
    """Distribute nested copy loops over all threads of a block: neighbors copy neighbors.

    threads: by axis, the fastest first. width: elements that a thread copies at once; divides the
    extent of the last loop. unrolled: the most rounds of a thread that are written out, so that no
    more elements wait for one another in its registers; None: all of them.
    """
    around, lanes = list(loops), ""
    if width > 1:
        around[-1], lanes = s.split(around[-1], width)
    fused = fuse_all(s, existing(s, around))
    if fused is None:
        return
    count, whole = extents(s.kernel)[fused], math.prod(threads.values())
    turns, mine = s.split(fused, whole, "guard")
    axes = list(threads.items())
    bound = []
    for axis, n in axes[:-1]:
        mine, own = s.split(mine, n)
        bound.append((own, axis))
    bound.append((mine, axes[-1][0]))
    s.reorder(*(own for own, _ in reversed(bound)), turns)
    if count > whole:
        if unrolled and extents(s.kernel)[turns] > unrolled:
            _, turns = s.split(turns, unrolled, "guard")
        s.unroll(turns)
    for own, axis in bound:
        s.bind(own, axis)
    if lanes:
        s.vectorize(lanes)


def bind_blocks(s: Schedule, loops: Sequence[str]) -> None:
    """The last loops around blocks on their own axes, all further out as one."""
    there = list(loops)
    while len(there) > 3:
        there = [s.fuse(there[0], there[1]), *there[2:]]
    for axis, loop in zip("xyz", reversed(there), strict=False):
        s.bind(loop, f"blockIdx.{axis}")


def nests(body: Stmt) -> Iterator[Stmt]:
    """The statements at the root of a kernel, without the allocations around them."""
    if isinstance(body, Alloc):
        yield from nests(body.body)
    elif isinstance(body, Block):
        for inner in body.stmts:
            yield from nests(inner)
    else:
        yield body
