"""The cost of reductions along columns: what their blocks ask of memory, and the time of it.

A block has `columns` neighboring results, and `parts` threads for each; thread n has column n mod
columns and part n div columns, so a warp reads neighbors, and its parts of a tree are in different
banks. The time is the larger of two bounds: memory, and a block times the rounds of blocks.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import NamedTuple

import numpy as np

from tilewright.compute.nodes import Computation
from tilewright.schedule.space.patterns import (
    address,
    free_dims,
    reduction_dims,
    stride,
)
from tilewright.targets.simt.cost import SECTOR
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


class Columns(NamedTuple):
    """Columns to reduce. results: how many; steps: elements of each, `pitch` elements apart; sizes:
    bytes of an element, of a result, and of each component of a sum."""

    results: int
    steps: int
    pitch: int
    itemsize: int
    result: int
    sums: tuple[int, ...]


def columns_of(first: Computation, last: Computation) -> Columns:
    """Those of a reduction, whose results are those of `last`. Several dimensions of either kind
    count as one, with the steps of the innermost."""
    results = steps = 1
    for d in free_dims(first):
        results *= d.extent
    along = reduction_dims(first)
    for d in along:
        steps *= d.extent
    wide = [d for d in along if d.extent > 1] or along
    read = max(first.accesses, key=lambda a: a.buffer.size)
    pitch = stride(address(read), wide[-1].var) or results
    assert first.reducer is not None
    sums = tuple(t.itemsize for t in first.reducer.dtypes)
    result = last.outputs[0].tensor.dtype.itemsize
    return Columns(results, steps, abs(pitch), read.dtype.itemsize, result, sums)


def column_ns(of: Columns, columns: int, parts: int, m: SimtMachine) -> float:
    """Nanoseconds of all columns, in blocks of so many threads."""
    columns, parts = min(columns, of.results), min(parts, of.steps)
    moved = SECTOR * sum(_sectors(of, columns, parts, m))
    threads = columns * parts
    meet = BARRIER_NS + (0.0 if m.shared_pays else SWITCH_NS * threads)
    blocks = ceil(of.results / columns)
    block = ceil(of.steps / parts) * STEP_NS + tree_meetings(parts) * meet
    at_once = m.units * max(1, min(m.unit_blocks, m.unit_threads // threads))
    return max(moved / m.bandwidth, ceil(blocks / at_once) * block)


def column_counts(
    of: Columns, columns: int, parts: int, machine: SimtMachine
) -> LaunchCounts:
    """What a launch asks for, without other inputs of a map after it."""
    columns, parts = min(columns, of.results), min(parts, of.steps)
    thread = np.arange(columns * parts)
    x, y = thread % columns, thread // columns
    stored = loaded = 0
    for block, times in _whole_and_last(of.results, columns, of.itemsize):
        inside = block * columns + x < of.results
        for size in of.sums if parts > 1 else ():
            readers = inside & (y < 1) if of.results % columns == 0 else inside
            into, out_of = _tree(inside, readers, columns, size, machine)
            stored += times * into
            loaded += times * out_of
    blocks = ceil(of.results / columns)
    meets = blocks * tree_meetings(parts)
    shared = sum(of.sums) * columns * parts * (parts > 1)
    read, written = _sectors(of, columns, parts, machine)
    return LaunchCounts(read, written, stored, loaded, meets, shared)


@cache
def _sectors(
    of: Columns, columns: int, parts: int, machine: SimtMachine
) -> tuple[int, int]:
    """Sectors of the device's memory that a launch reads and writes."""
    thread = np.arange(columns * parts)
    x, y = thread % columns, thread // columns
    read = written = 0
    for block, times in _whole_and_last(of.results, columns, of.itemsize):
        inside = block * columns + x < of.results
        first = (block * columns + x) * of.result
        written += times * sectors_of(first, inside & (y < 1), machine)
        for turn, turns in _whole_and_last(of.steps, parts, of.pitch * of.itemsize):
            step = turn * parts + y
            places = (step * of.pitch + block * columns + x) * of.itemsize
            there = inside & (step < of.steps)
            read += times * turns * sectors_of(places, there, machine)
    return read, written


def tree_meetings(parts: int) -> int:
    """How often the threads of a tree in shared memory meet: before each level, and after it."""
    return 1 + (parts - 1).bit_length() if parts > 1 else 0


def _whole_and_last(count: int, each: int, step: int) -> list[tuple[int, int]]:
    """Groups of `each`, of which some stand for others that are as far into a sector: their
    numbers, and how many each stands for. step: bytes from one element to the next."""
    whole, rest = divmod(count, each)
    found = list(repeated(whole, sector_period(each * step)))
    return [*found, (whole, 1)] if rest else found


def _tree(
    inside: Array, readers: Array, columns: int, size: int, machine: SimtMachine
) -> tuple[int, int]:
    """Turns of the banks to store the parts and add them up: of stores, and of loads.

    inside: the threads that have a column. readers: that load its sum; the first of each, but all
    of those that a condition on the column is around, as it is decided there.
    """
    thread = np.arange(inside.size)
    x, y = thread % columns, thread // columns
    stored = turns_of(thread * size, inside, size, machine)
    loaded = turns_of(x * size, readers, size, machine)
    left = inside.size // columns
    while left > 1:
        half = -(-left // 2)
        adds = inside & (y < left - half)
        mine = turns_of(thread * size, adds, size, machine)
        loaded += mine + turns_of((thread + half * columns) * size, adds, size, machine)
        stored += mine
        left = half
    return stored, loaded
