"""The cost of attention over blocks of keys on a SIMT machine, and the tiles of rows that fit.

As for products (`predict`): a step, that is a block of keys, takes as long as the slowest of its
arithmetic, its shared-memory transactions and its bytes from device memory. Constants are those of
`cost`, and have not been measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from tilewright.loops.passes.shared_room import room_for
from tilewright.targets.simt.cost import (
    LATENCY,
    OWN_REGISTERS,
    SYNC,
    WORD,
    WarpRequest,
    bank_turns,
    in_step,
)
from tilewright.targets.simt.machine import SimtMachine

ROWS: Final = (128, 64, 32, 16, 8, 4)  # of a block, as may be tried
COLUMN_THREADS: Final = (16, 32, 8, 4)  # that share a row, as may be tried
THREADS: Final = (16, 32, 64, 128, 256)  # of a block, as may be tried
EXPONENTIAL: Final = 20  # instructions of one: a polynomial and what is around it
# Elements between rows of a tile that neighbors read: other banks for each.
ROOM: Final = 1
BARRIERS: Final = 4  # of a step
KEY_BLOCK: Final = 64  # keys at a time, at most


class AttentionShape(NamedTuple):
    """around: iterations of the loops around the rows of queries. keys: keys of a block. blocks:
    number of blocks. depth: products per score. columns: columns of the result. itemsize: bytes of
    a number. keys_last: whether neighboring keys, not the depth, are contiguous in memory."""

    around: int
    rows: int
    keys: int
    blocks: int
    depth: int
    columns: int
    itemsize: int
    keys_last: bool


class AttentionTile(NamedTuple):
    """rows: of a block. row_threads, column_threads: that share it."""

    rows: int
    row_threads: int
    column_threads: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.row_threads * self.column_threads

    @property
    def each(self) -> int:
        """Rows of a thread."""
        return self.rows // self.row_threads

    def columns(self, count: int) -> int:
        """Columns of a thread, of `count` in total."""
        return -(-count // self.column_threads)


@lru_cache(maxsize=256)
def attention_tiles(
    a: AttentionShape, machine: SimtMachine
) -> tuple[AttentionTile, ...]:
    """The tiles that fit the machine, the fastest expected first."""
    times = {}
    for tile in _possible(a, machine):
        if _fits(a, tile, machine):
            times[tile] = time_by_blocks(a, tile, machine)
    return tuple(sorted(times, key=lambda t: (times[t], t)))


def _possible(a: AttentionShape, machine: SimtMachine) -> Iterator[AttentionTile]:
    narrow = min(a.keys, a.columns)
    for rows in ROWS:
        if rows > 1 << (a.rows - 1).bit_length():
            continue
        for lanes in COLUMN_THREADS:
            for threads in THREADS:
                down = threads // lanes
                if lanes <= narrow and 0 < down <= rows:
                    yield AttentionTile(rows, down, lanes)


def _fits(a: AttentionShape, tile: AttentionTile, machine: SimtMachine) -> bool:
    return (
        tile.threads <= machine.block_threads
        and registers(a, tile) <= machine.thread_registers
        and shared_bytes(a, tile, machine) <= machine.shared
    )


def registers(a: AttentionShape, tile: AttentionTile) -> int:
    """Registers of a thread: scores and their exponentials, three per result, two per row."""
    columns = 2 * tile.columns(a.keys) + 3 * tile.columns(a.columns) + 2
    return tile.each * columns * (a.itemsize // WORD) + OWN_REGISTERS


def shared_bytes(a: AttentionShape, tile: AttentionTile, machine: SimtMachine) -> int:
    """Shared bytes of a block: queries, keys, values and shares; parts of sums if warps cannot
    shuffle."""
    held = [tile.rows * (n + ROOM) for n in (a.depth, a.keys)]
    held.append(a.keys * a.columns)
    held.append(a.depth * a.keys if a.keys_last else a.keys * (a.depth + ROOM))
    if tile.column_threads > machine.warp:
        held += [tile.threads, tile.threads]
    return sum(room_for(n * a.itemsize) for n in held)


def together(a: AttentionShape, tile: AttentionTile, machine: SimtMachine) -> int:
    """The blocks that a unit runs at once."""
    room = (
        machine.unit_threads // tile.threads,
        machine.unit_blocks,
        machine.registers // (registers(a, tile) * tile.threads),
        machine.shared // shared_bytes(a, tile, machine),
    )
    return max(1, min(room))


def reads(
    a: AttentionShape, tile: AttentionTile, machine: SimtMachine
) -> Iterator[WarpRequest]:
    """The shared-memory reads of a step's products: rows, and adjacent columns."""
    warps = -(-tile.threads // in_step(machine))
    key = 1 if a.keys_last else a.depth + ROOM
    for steps, columns, pitch, beside_each in (
        (a.depth, a.keys, a.depth + ROOM, key),
        (a.keys, a.columns, a.keys + ROOM, 1),
    ):
        lanes = range(min(in_step(machine), tile.threads))
        rows = [a.itemsize * pitch * (n // tile.column_threads) for n in lanes]
        beside = [a.itemsize * beside_each * (n % tile.column_threads) for n in lanes]
        times = steps * warps
        for each, places in ((tile.each, rows), (tile.columns(columns), beside)):
            turns = bank_turns(places, machine.banks, a.itemsize)
            yield WarpRequest("shared", times * each, turns)


def time_by_blocks(
    a: AttentionShape, tile: AttentionTile, machine: SimtMachine
) -> float:
    """Nanoseconds of all of it in blocks of these rows."""
    at_once = together(a, tile, machine)
    blocks = a.around * math.ceil(a.rows / tile.rows)
    waves = math.ceil(blocks / machine.units)
    threads = math.ceil(tile.threads / in_step(machine)) * in_step(machine)
    issued = 0.0
    for steps, columns in ((a.depth, a.keys), (a.keys, a.columns)):
        mine = tile.each * tile.columns(columns)
        loads = tile.each + tile.columns(columns)
        issued += steps * threads * (mine + loads)
    issued += EXPONENTIAL * tile.rows * (a.keys + 2 * a.columns)
    turns = sum(r.requests * r.turns for r in reads(a, tile, machine))
    width = min(in_step(machine), machine.banks) * WORD
    moved = a.keys * (a.depth + a.columns) * a.itemsize
    step = max(
        issued / machine.rate,
        turns * width / machine.shared_rate,
        moved * machine.units / machine.cache_bandwidth,
    )
    waits = (LATENCY + BARRIERS * SYNC) / min(at_once, waves)
    return waves * a.blocks * (step + waits) + machine.launch_ns
