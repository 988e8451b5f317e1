"""The cost of scans in parts: what their blocks ask of memory, and the time of it.

A thread has a part of a scan: it adds it up, says so to the others, learns in levels what is before
it, and goes through it again. Scans along rows have the parts beside one another, an odd number of
elements each where rows go through shared memory, so that threads are in different banks; adjacent
scans have `columns` of them beside one another.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Final, NamedTuple

import numpy as np

from tilewright.targets.simt.counts import (
    Array,
    LaunchCounts,
    repeated,
    sector_period,
    sectors_of,
    turns_of,
)
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.row_cost import BARRIER_NS, STEP_NS, SWITCH_NS

COLUMNS: Final = 32  # neighboring scans that access whole lines of memory together


class Scans(NamedTuple):
    """Scans: rows of `length` elements, or, where `columns` is not 0, so many scans beside one
    another. size: bytes of an element. staged: whether what is read, and what is written, goes
    through shared memory."""

    rows: int
    length: int
    columns: int
    size: int
    staged: tuple[bool, bool]


class _ScanThreads(NamedTuple):
    """The threads of a block: their numbers, parts and columns; which are there."""

    number: Array
    part: Array
    column: Array
    there: Array


def part_size(length: int, parts: int, odd: bool) -> int:
    """Elements of a part. odd: as neighbors in other banks need it."""
    size = ceil(length / parts)
    return size + (odd and size % 2 == 0)


def scan_meetings(parts: int, staged: int) -> int:
    """How often the threads of a block meet: once their sums are there and once each has what is
    right before it, after each level but the last, and around each tensor that is staged."""
    return (parts - 1).bit_length() + 1 + staged


def scan_ns(of: Scans, parts: int, m: SimtMachine) -> float:
    """Nanoseconds of all scans with `parts` threads each; with 1, of a thread each."""
    if parts == 1:
        each = of.length * STEP_NS
        return ceil(of.rows * max(1, of.columns) / (m.units * m.usual_threads)) * each
    beside = min(of.columns, COLUMNS) or 1
    threads = parts * beside
    meet = BARRIER_NS + (0.0 if m.shared_pays else SWITCH_NS * threads)
    size = part_size(of.length, parts, any(of.staged))
    block = 2 * size * STEP_NS + scan_meetings(parts, sum(of.staged)) * meet
    at_once = m.units * max(1, min(m.unit_blocks, m.unit_threads // threads))
    blocks = of.rows * ceil((of.columns or 1) / beside)
    return ceil(blocks / at_once) * block


@cache
def scan_counts(of: Scans, parts: int, m: SimtMachine) -> LaunchCounts:
    """What a launch asks for, in which each row is one block's."""
    beside = min(of.columns, COLUMNS) or 1
    each = part_size(of.length, parts, any(of.staged))
    used = ceil(of.length / each)
    thread = np.arange(parts * beside)
    total = np.zeros(4, np.int64)
    meets = 0
    pitch = of.columns or 1
    groups = repeated(of.rows, sector_period(of.length * pitch * of.size))
    for row, times in groups:
        for first in range(0, of.columns or 1, beside):
            part, column = thread // beside, thread % beside
            there = (part < used) & (first + column < pitch)
            t = _ScanThreads(thread, part, column, there)
            begin = row * of.length * pitch + first
            total += times * np.array(_block(of, t, begin, each, m))
            meets += times * scan_meetings(used, sum(of.staged))
    if of.rows == 1 and not of.columns:  # its start is in the device's memory
        total += (1, 1, 0, 0)
    exchanged = 3 * used * beside * of.size
    shared = exchanged + sum(of.staged) * of.length * of.size
    read, written, stored, loaded = total.tolist()
    return LaunchCounts(read, written, stored, loaded, meets, shared)


def _block(
    of: Scans, t: _ScanThreads, begin: int, each: int, m: SimtMachine
) -> tuple[int, int, int, int]:
    """Sectors read and written, and turns to store and to load, of one block."""
    read = written = stored = loaded = 0
    pitch = of.columns or 1
    for turn in range(each):
        step = t.part * each + turn
        on = t.there & (step < of.length)
        device = sectors_of((begin + step * pitch + t.column) * of.size, on, m)
        banks = turns_of(step * of.size, on, of.size, m)
        read += 2 * device * (not of.staged[0])
        loaded += 2 * banks * of.staged[0]
        written += device * (not of.staged[1])
        stored += banks * of.staged[1]
    for turn in range(ceil(of.length / t.number.size) if any(of.staged) else 0):
        step = turn * t.number.size + t.number
        on = step < of.length
        device = sectors_of((begin + step) * of.size, on, m)
        banks = turns_of(step * of.size, on, of.size, m)
        read += device * of.staged[0]
        stored += banks * of.staged[0]
        written += device * of.staged[1]
        loaded += banks * of.staged[1]
    into, out_of = _exchange(of, t, m)
    return read, written, stored + into, loaded + out_of


def _exchange(of: Scans, t: _ScanThreads, m: SimtMachine) -> tuple[int, int]:
    """Turns to store and to load what the parts tell one another: their sums, these one part
    later, and the levels, of which the first parts only copy."""

    def turns(on: Array, parts: int = 0) -> int:
        beside = t.number.size // (int(t.part[-1]) + 1)
        return turns_of((t.number - parts * beside) * of.size, on, of.size, m)

    first, others = t.there & (t.part == 0), t.there & (t.part > 0)
    stored = turns(t.there) + turns(first) + turns(others)
    loaded = turns(others, 1) + turns(t.there)
    used = int(t.part[t.there].max()) + 1
    far = 1
    while far < used:
        copies, adds = t.there & (t.part < far), t.there & (t.part >= far)
        stored += turns(copies) + turns(adds)
        loaded += turns(copies) + turns(adds) + turns(adds, far)
        far *= 2
    return stored, loaded
