"""What the blocks of a transpose ask of memory: each copies a tile in, and out the other way.

Thread n of a block copies element n mod side of row n div side of the tile, in as many rounds as
the tile has more rows than the block. A row of the tile has one element more than the banks are
many: a warp that reads a column of it finds each element in another bank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from math import ceil, prod
from typing import NamedTuple

import numpy as np

from tilewright.targets.simt.cost import SECTOR, WORD
from tilewright.targets.simt.counts import (
    Array,
    LaunchCounts,
    repeated,
    sector_period,
    sectors_of,
    turns_of,
)
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.row_cost import BARRIER_NS, STEP_NS


class TransposeShape(NamedTuple):
    """A transpose. along, across: elements of the sides that are contiguous where it is read and
    written; others: of the other dimensions. read, write: per dimension, across, along or others,
    elements from one to the next. sizes: bytes of an element that is read, and written."""

    along: int
    across: int
    others: tuple[int, ...]
    read: tuple[int, ...]
    write: tuple[int, ...]
    sizes: tuple[int, int]


class _Pass(NamedTuple):
    """One way through all tiles. rows, width: the sides of the tensor, the second contiguous; step:
    elements from row to row; others: extents and steps of the other dimensions; size: bytes."""

    rows: int
    width: int
    step: int
    others: Sequence[tuple[int, int]]
    size: int


@cache
def transpose_counts(
    of: TransposeShape, side: int, rows: int, m: SimtMachine
) -> LaunchCounts:
    """What a launch asks for with tiles of this side, by blocks of side x rows threads."""
    read = list(zip(of.others, of.read[1:], strict=True))
    write = list(zip(of.others, of.write[1:], strict=True))
    size, result = of.sizes
    come = _Pass(of.across, of.along, of.read[0], read, size)
    go = _Pass(of.along, of.across, of.write[0], write, result)
    row = m.banks + 1
    stored = _turns(come, side, rows, (row, 1), size, m)
    loaded = _turns(go, side, rows, (1, row), size, m)
    tiles = -(-of.along // side) * -(-of.across // side) * prod(of.others)
    shared = row * min(side, of.across) * size
    arrived, left = (_sectors(x, side, rows, m) for x in (come, go))
    return LaunchCounts(arrived, left, stored, loaded, tiles, shared)


def transpose_ns(of: TransposeShape, side: int, rows: int, m: SimtMachine) -> float:
    """Nanoseconds of a launch: of device memory, of the banks, or of blocks in their rounds."""
    count = transpose_counts(of, side, rows, m)
    turn = m.banks * WORD / m.shared_rate / m.units
    threads = side * rows
    at_once = m.units * max(1, min(m.unit_blocks, m.unit_threads // threads))
    block = 2 * side // rows * STEP_NS + BARRIER_NS
    return max(
        count.moved / m.bandwidth,
        (count.stored + count.loaded) * turn,
        ceil(count.meetings / at_once) * block,
    )


def _tiles(of: _Pass, side: int) -> Iterator[tuple[int, int, int]]:
    """The first row and place of tiles, and how many are like each."""
    for i, down in _groups(of.rows, side, of.step * of.size):
        for j, beside in _groups(of.width, side, of.size):
            yield i * side, j * side, down * beside


def _groups(count: int, each: int, step: int) -> list[tuple[int, int]]:
    whole, rest = divmod(count, each)
    found = list(repeated(whole, sector_period(each * step)))
    return [*found, (whole, 1)] if rest else found


def _sectors(of: _Pass, side: int, rows: int, m: SimtMachine) -> int:
    y, x = _threads(side, rows)
    total = 0
    for begin, times in _begins(of).items():
        for first, place, tiles in _tiles(of, side):
            row = first + y
            there = (row < of.rows) & (place + x < of.width)
            at = begin + (row * of.step + place + x) * of.size
            total += times * tiles * sectors_of(at, there, m)
    return total


def _turns(
    of: _Pass, side: int, rows: int, steps: tuple[int, int], size: int, m: SimtMachine
) -> int:
    """Turns of the banks for each element of each tile. steps: elements in it from row to row, and
    from place to place."""
    y, x = _threads(side, rows)
    total = 0
    for first, place, tiles in _tiles(of, side):
        there = (first + y < of.rows) & (place + x < of.width)
        at = (y * steps[0] + x * steps[1]) * size
        total += tiles * turns_of(at, there, size, m)
    return total * prod(n for n, _ in of.others)


def _threads(side: int, rows: int) -> tuple[Array, Array]:
    """The row and the place of each thread in each round."""
    thread = np.arange(side * rows)
    rounds = np.arange(side // rows)[:, None]
    return rounds * rows + thread // side, thread % side


def _begins(of: _Pass) -> Counter[int]:
    """How far into a sector the other dimensions begin, and how often."""
    found = Counter({0: 1})
    for extent, step in of.others:
        nbytes = step * of.size
        more: Counter[int] = Counter()
        for n, times in repeated(extent, sector_period(nbytes)):
            for begin, before in found.items():
                more[(begin + n * nbytes) % SECTOR] += before * times
        found = more
    return found
