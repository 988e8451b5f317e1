"""Scans (running sums): the threads of a block share a row, or blocks share one long row.

    for i: for k in n: { s += x[i, k]; y[i, k] = s }
    ->  blockIdx.x: i: threadIdx.x o: p[o] = the sum of a part
                       log2(parts) levels: the sum of what is before each part
                       threadIdx.x o: from there on, y[i, ..] of the part

Rows go through shared memory where it is faster: neighbors copy neighbors, and parts have an odd
number of elements, so that threads access different banks. If scans are adjacent in memory,
neighboring threads have neighboring scans, and the parts are on the other axis. Every value is
computed twice; the order of the values is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import PS, Computation, Dim
from tilewright.loops.analysis.effects import writes
from tilewright.loops.passes.shared_room import room_of
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import existing, extents, fuse_all
from tilewright.schedule.space.patterns import address, classify, free_dims, stride
from tilewright.schedule.tree import find_buffer, find_loop
from tilewright.targets.simt.binding import over_threads, run_at_once
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.row_cost import LANES, part_counts
from tilewright.targets.simt.scan_cost import COLUMNS, Scans, part_size, scan_ns

THREADS: Final = 256  # of a block that shares a long row with others
UNROLLED: Final = 4  # rounds of a copy that are written out
HELD: Final = (
    24  # bytes of shared memory that a thread takes to exchange its part's sum
)


def is_scan(computations: Sequence[Computation], machine: SimtMachine) -> bool:
    """Whether a group is one scan that is expected to be faster in parts."""
    known = all(d.static and d.extent > 0 for c in computations for d in c.dims)
    if not known or classify(computations).name != "scan":
        return False
    (c,) = computations
    dims = [d for d in c.dims if d.combine == PS]
    return len(dims) == 1 and _parts(c, machine)[0] > 1


def by_scan_parts(
    s: Schedule,
    computations: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    """See the module's docstring. requires: `is_scan`.

    parameters: `parts`, threads of a row; `blocks`, that share a row, if it is the only one;
    `<tensor>.staged`, whether rows of a tensor go through shared memory.
    """
    (c,) = computations
    s = s.fork()
    (along,) = (f"{c.name}.{d.var.name}" for d in c.dims if d.combine == PS)
    rows = existing(s, [f"{c.name}.{d.var.name}" for d in free_dims(c)])
    for loop in rows:
        run_at_once(s, loop)
    usual, possible = _parts(c, machine)
    parts = choose("parts", possible, usual)
    if not rows:
        return _one_row(s, c, along, parts, machine, choose)
    beside, axis = _beside(c), "threadIdx.x"
    if beside is not None:
        column = f"{c.name}.{beside.var.name}"
        rows = [n for n in rows if n != column]
        if rows:
            s.reorder(*rows, column)
        outer, inner = s.split(column, _columns(c), "guard")
        rows, axis = [*rows, outer], "threadIdx.y"
        s.bind(inner, "threadIdx.x")
    row = fuse_all(s, existing(s, rows) or rows[:1])
    assert row is not None
    if beside is None:
        _staged(s, c, row, parts, machine, choose)
    _in_parts(s, along, parts, axis, odd=beside is None and machine.shared_pays)
    s.bind(row, "blockIdx.x")
    return s


def _one_row(
    s: Schedule,
    c: Computation,
    along: str,
    parts: int,
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    """A single row: by one block, or by several, which exchange their sums in memory."""
    assert c.reducer is not None
    length = extents(s.kernel)[along]
    usual, possible = part_counts(machine, length, THREADS)
    most = min(machine.block_threads, machine.shared // HELD)
    possible = [n for n in possible if n <= most and c.reducer.commutative] or [1]
    blocks = choose("blocks", possible, min(usual, possible[-1]))
    if blocks == 1:
        _in_parts(s, along, parts)
        return s
    outer, inner = s.split(along, -(-length // blocks), "guard")
    sums, before, again = s.split_scan(outer, "global")
    _sum_in_registers(s, sums)
    over_threads(s, [f"{inner}.parts"], parts, UNROLLED)
    _in_parts(s, before, blocks)
    whole = length % blocks == 0  # else what the last block stores is not one box
    if whole:
        _staged(s, c, again, parts, machine, choose)
    _in_parts(s, inner, parts, odd=whole and machine.shared_pays)
    for loop in (sums, again):
        s.bind(loop, "blockIdx.x")
    return s


def _in_parts(
    s: Schedule,
    along: str,
    parts: int,
    axis: str = "threadIdx.x",
    odd: bool = False,
) -> None:
    """A scan's loop by the threads of a block. odd: parts have an odd number of elements."""
    length = extents(s.kernel)[along]
    size = part_size(length, parts, odd)
    outer = along if size == 1 else s.split(along, size, "guard")[0]
    loops = s.split_scan(outer, "shared", levels=True)
    _sum_in_registers(s, loops[0])
    for loop in loops:
        s.bind(loop, axis)


def _sum_in_registers(s: Schedule, loop: str) -> None:
    """Accumulate the sum of each part in registers."""
    f, _ = find_loop(s.kernel, loop, "cache_write")
    for b in writes(f):
        s.cache_write(b.name, loop, "register")


def _staged(
    s: Schedule,
    c: Computation,
    row: str,
    parts: int,
    machine: SimtMachine,
    choose: Choices,
) -> None:
    """Rows of the tensors through shared memory, as far as they fit."""
    left = machine.shared - HELD * parts
    results = [o.tensor for o in c.outputs]
    for b in dict.fromkeys((*c.inputs, *results)):
        trial = s.fork()
        try:
            if b in results:
                name, suffix = trial.cache_write(b.name, row, "shared"), "w"
            else:
                name, suffix = trial.cache_read(b.name, row, "shared"), "r"
        except ScheduleError:
            continue  # what a row accesses is not one box
        held, _ = find_buffer(trial.kernel, name, "set_scope")
        size = room_of(held)
        fits = size <= left and machine.shared_pays
        if not choose(f"{b.name}.staged", (True, False) if fits else (False,), fits):
            continue
        left -= size
        if b in results:
            s.cache_write(b.name, row, "shared")
        else:
            s.cache_read(b.name, row, "shared")
        copies = [f"{name}.{suffix}{n}" for n in range(len(held.shape))]
        over_threads(s, existing(s, copies), parts, UNROLLED)


def _beside(c: Computation) -> Dim | None:
    """The dimension along which scans are adjacent in memory everywhere."""
    out = c.outputs[0]
    places = [address(a) for a in (out.tensor[out.index], *c.accesses)]
    for d in free_dims(c):
        if d.extent > 1 and all(stride(a, d.var) == 1 for a in places):
            return d
    return None


def _columns(c: Computation) -> int:
    """Adjacent scans of a block."""
    beside = _beside(c)
    return 1 if beside is None else min(COLUMNS, beside.extent)


def _parts(c: Computation, m: SimtMachine) -> tuple[int, list[int]]:
    """The number of threads of a scan that is expected to be fastest, and all possible ones."""
    of = _scans(c, m)
    most = min(m.block_threads, m.shared // HELD) // _columns(c)
    possible = [n for n in LANES if n <= min(most, of.length)] or [1]
    usual = min(possible, key=lambda n: (scan_ns(of, n, m), n))
    return usual, [n for n in possible if n > 1] or [1]


def _scans(c: Computation, m: SimtMachine) -> Scans:
    """What the cost depends on: rows go through shared memory as far as they fit."""
    beside, rows = _beside(c), prod(d.extent for d in free_dims(c))
    (length,) = (d.extent for d in c.dims if d.combine == PS)
    size = c.outputs[0].tensor.dtype.itemsize
    left = m.shared - HELD * min(m.block_threads, length)
    many = m.shared_pays and beside is None and rows > 1
    columns = 0 if beside is None else beside.extent
    row = length * size
    staged = many and row <= left, many and 2 * row <= left
    return Scans(rows // max(1, columns), length, columns, size, staged)
