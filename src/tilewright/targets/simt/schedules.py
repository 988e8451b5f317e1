"""Schedules that always apply: a thread for each element of a result, whatever computes it.

    for i in m: for j in n: y[i, j] = ...     ->   blockIdx.x b: threadIdx.x t:
                                                     if 64*b + t < m*n: y[.., ..] = ...

The loops of a nest that may run at once, from the outside in, become one, in tiles of a block's
threads; what is inside runs in a thread. A nest without such a loop is one thread. Each nest is a
launch of its own, with what it leaves to others in memory of the device; maps between nests are
inlined, and a reduction whose results one map reads is computed in the map's threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.effects import writes
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, Update
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.schedule.space import Choices, Sketch
from tilewright.schedule.space.inlining import inlined
from tilewright.schedule.space.patterns import uses
from tilewright.targets.simt.machine import SimtMachine

THREADS: Final = (32, 64, 128, 256, 512, 1024)  # of a block, as may be tried

HELD: Final = 32  # elements at most that a thread accumulates in registers


def sketches(
    kernel: Kernel, computations: Sequence[Computation], machine: SimtMachine
) -> list[Sketch]:
    """The families of schedules of a kernel, best first.

    Computations: what it computes; without any it is one that an operator gives.
    """
    run = partial(_by_element, kernel, tuple(computations), machine)
    return [Sketch("by element", run)]


def _by_element(
    kernel: Kernel,
    computations: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    """A thread for each element. parameters: `threads` of a block, those of `inlined`."""
    s, rest = Schedule(kernel), list(computations)
    if len(rest) > 1:
        s, rest = inlined(s, rest, choose)
    possible = [n for n in THREADS if n <= machine.block_threads]
    threads = choose("threads", possible, machine.usual_threads)
    writers = {o.tensor: c for c in rest for o in c.outputs}
    waiting = {n.var.name for n in _roots(s)}
    while found := [n for n in _roots(s) if n.var.name in waiting]:
        nest = found[-1]  # what it reads may be computed in its threads
        waiting.remove(nest.var.name)
        inner = bind_elements(s, nest, threads)
        reader = next((writers[b] for b in writes(nest) if b in writers), None)
        if inner and reader is not None:
            s = _with_operands(s, reader, inner, writers)
    return s


def bind_elements(s: Schedule, nest: For, threads: int) -> str:
    """Bind the outer loops of a nest that may run at once: blocks of so many threads.

    Returns the loop over threads; empty where there is none.
    """
    fused, extent = "", 1
    for f in _chain(nest):
        if not f.trips or not _made_serial(s, f):
            break
        fused = s.fuse(fused, f.var.name) if fused else f.var.name
        extent *= f.trips
    if not fused:
        return ""
    _accumulate_in_registers(s, nest, fused)
    outer, inner = s.split(fused, min(threads, extent), "guard")
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.x")
    return inner


def _accumulate_in_registers(s: Schedule, nest: For, loop: str) -> None:
    """What one iteration of a loop adds up is in registers until it is done."""
    updates = (p.stmt for p in walk(nest) if isinstance(p.stmt, Update))
    for b in dict.fromkeys(b for u in updates for b in u.buffers):
        if b.scope == "register":
            continue
        trial = s.fork()
        try:
            name = trial.cache_write(b.name, loop, "register")
        except ScheduleError:
            continue  # what is touched is not one box: it stays where it is
        held = (p.stmt for p in walk(trial.kernel.body) if isinstance(p.stmt, Alloc))
        if any(a.buffer.name == name and a.buffer.size <= HELD for a in held):
            s.cache_write(b.name, loop, "register")


def _chain(nest: For) -> Iterator[For]:
    """The loops that are directly inside of one another."""
    s: Stmt = nest
    while isinstance(s, For):
        yield s
        s = s.body


def _made_serial(s: Schedule, f: For) -> bool:
    """Whether the iterations of a loop may run at once; if so it is serial, until it is bound."""
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


def _with_operands(
    s: Schedule, reader: Computation, inner: str, writers: Mapping[Buffer, Computation]
) -> Schedule:
    """The reductions whose results only this loop reads, each element once, computed in it."""
    for tensor in reader.inputs:
        c = writers.get(tensor)
        if c is None or tensor in s.kernel.params or not _read_once(reader, tensor):
            continue
        trial = s.fork()
        try:
            trial.compute_at(tensor.name, inner)
            trial.set_scope(tensor.name, "register")
        except ScheduleError:
            continue  # it is a launch of its own
        s = trial
    return s


def _read_once(reader: Computation, tensor: Buffer) -> bool:
    """Whether each element is read at one point only, and no other tensor decides which."""
    reads = [a for a in reader.accesses if a.buffer is tensor]
    wide = [d.var for d in reader.dims if d.extent > 1]
    return len(reads) == 1 and all(
        any(uses(i, v) for i in reads[0].index) for v in wide
    )


def _roots(s: Schedule) -> list[For]:
    return [n for n in nests(s.kernel.body) if isinstance(n, For)]


def nests(body: Stmt) -> Iterator[Stmt]:
    """The statements at the root of a kernel, what is allocated around them left out."""
    if isinstance(body, Alloc):
        yield from nests(body.body)
    elif isinstance(body, Block):
        for inner in body.stmts:
            yield from nests(inner)
    else:
        yield body
