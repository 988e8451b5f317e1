"""The time of a product in tiles, which decides the tile, and whether to use tiles at all.

A step of a block takes as long as the slowest of: its arithmetic, its shared-memory transactions,
its bytes from device memory. Blocks run in waves, as many at once as fit in the units; other blocks
of a unit hide the latency of a step's operands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Final

from tilewright.expr.nodes import Load
from tilewright.targets.simt.cost import (
    ALONE,
    IN_FLIGHT,
    LATENCY,
    SECTOR,
    STAGES,
    SYNC,
    WORD,
    copies,
    held,
    in_step,
    padding,
    shared_bytes,
    traffic,
)
from tilewright.targets.simt.last_wave import LastWave, best_wave, last_waves
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.products import Product
from tilewright.targets.simt.tiling import SimtTile, Tiling, tiling

# Sides of a block's tile, and of a thread's part of it, as may be tried.
SHAPES: Final = (
    (128, 128, 8, 8),
    (128, 64, 8, 4),
    (64, 128, 4, 8),
    (64, 64, 4, 4),
    (64, 64, 8, 4),
    (64, 32, 4, 4),
    (32, 64, 4, 4),
    (32, 32, 4, 2),
    (32, 32, 2, 2),
    (16, 64, 2, 4),
    (64, 16, 4, 2),
    (16, 32, 2, 2),
    (16, 16, 1, 1),
    (8, 64, 2, 2),
    (64, 8, 2, 2),
)
# For machines without warps, where a thread is a loop iteration: few threads with much work each.
LONE_SHAPES: Final = (
    (4, 128, 4, 8),
    (8, 128, 8, 8),
    (8, 64, 8, 4),
    (4, 64, 4, 4),
    (16, 64, 4, 4),
    (32, 32, 4, 4),
    (16, 32, 4, 2),
    (4, 32, 4, 1),
    (16, 16, 2, 2),
)
DEPTHS: Final = (8, 16, 32)
KEPT: Final = 48  # tiles that a tuner may try, the best ones


@lru_cache(maxsize=256)
def tiles(
    product: Product, machine: SimtMachine, staged: bool, exact: bool = False
) -> tuple[SimtTile, ...]:
    """The tiles that fit the machine, those first that are expected to be fastest. exact: as
    `time_in_tiles` has it."""
    times = {}
    for tile in _possible(machine):
        plan = tiling(product, tile)
        time = time_in_tiles(plan, machine, staged, exact)
        if time is not None:
            times[tile] = time
    return tuple(sorted(times, key=lambda t: (times[t], t))[:KEPT])


def stage_counts(plan: Tiling, machine: SimtMachine) -> list[int]:
    """How many tiles of an operand a block may have at once, by its shared memory and its steps
    along all sums, which are one loop then."""
    p = plan.product
    rooms = {x: padding(plan, x, machine) for x in (p.left, p.right)}
    able = (n for n in STAGES if n <= max(plan.steps, 1))
    return [n for n in able if shared_bytes(plan, rooms, n) <= machine.shared]


def _possible(machine: SimtMachine) -> list[SimtTile]:
    shapes = SHAPES if machine.warp > 1 else LONE_SHAPES
    return [
        SimtTile(rows, columns, depth, rows // mine, columns // theirs)
        for rows, columns, mine, theirs in shapes
        for depth in DEPTHS
    ]


def waves_of(
    plan: Tiling, machine: SimtMachine, staged: bool, exact: bool
) -> list[LastWave]:
    """The forms of the last wave of these tiles, the fastest first. exact: as `time_in_tiles` has
    it."""
    timed = partial(_launch_time, machine=machine, staged=staged)
    return last_waves(plan, machine, timed, exact)


def time_in_tiles(
    plan: Tiling, machine: SimtMachine, staged: bool, exact: bool = False
) -> float | None:
    """Nanoseconds of a product in these tiles; None if they do not fit the machine. exact: sums of
    floats are not in parts."""
    timed = partial(_launch_time, machine=machine, staged=staged)
    return best_wave(plan, machine, timed, exact)[1]


def _launch_time(plan: Tiling, machine: SimtMachine, staged: bool) -> float | None:
    """Nanoseconds of one launch of tiles; None if they do not fit the machine."""
    p = plan.product
    rooms = {x: padding(plan, x, machine) if staged else 0 for x in (p.left, p.right)}
    shared = shared_bytes(plan, rooms, 1) if staged else 0
    has = held(plan, machine, shared)
    fits = has.registers <= machine.thread_registers and shared <= machine.shared
    if not fits or has.blocks == 0 or plan.block_threads > machine.block_threads:
        return None
    waves = -(-plan.blocks // machine.units)
    step = _step(plan, machine, rooms, staged, min(has.blocks, waves))
    return waves * plan.steps * step + machine.launch_ns


def _step(
    plan: Tiling,
    machine: SimtMachine,
    rooms: Mapping[Load, int],
    staged: bool,
    together: int,
) -> float:
    """Nanoseconds of a step of a block, of several that a unit runs together."""
    p = plan.product
    rows, columns = plan.each(p.rows), plan.each(p.columns)
    issued = 1 + (rows + columns) / (rows * columns)
    running = together * -(-plan.block_threads // machine.warp) * rows * columns
    busy = min(1.0, running / IN_FLIGHT) if machine.warp > 1 else 1.0
    arithmetic = math.prod(plan.sizes.values()) * issued / (machine.rate * busy)
    if not staged:
        read = rows * p.left.dtype.itemsize + columns * p.right.dtype.itemsize
        loaded = read * plan.depth * plan.block_threads
        return max(arithmetic, loaded / machine.shared_rate)
    copied = (r for x, room in rooms.items() for r in copies(plan, x, room, machine))
    arithmetic += sum(r.requests for r in copied) * in_step(machine) / machine.rate
    moved = turns = 0
    for request in traffic(plan, machine, rooms):
        if request.memory == "global":
            moved += request.requests * request.turns * SECTOR
        else:
            turns += request.requests * request.turns
    inner = turns * min(in_step(machine), machine.banks) * WORD / machine.shared_rate
    outer = moved * machine.units / machine.cache_bandwidth
    return max(arithmetic, inner, outer) + (LATENCY + 2 * SYNC) / together


def time_by_element(product: Product, machine: SimtMachine) -> float:
    """Nanoseconds where each thread has one result, and reads both operands for each product."""
    read = product.left.dtype.itemsize + product.right.dtype.itemsize
    each = max(ALONE / machine.rate, read / machine.shared_rate)
    results = product.points // math.prod(d.extent for d in product.sums)
    waves = -(-results // (machine.units * machine.usual_threads))
    threads = min(results, machine.usual_threads)
    depth = math.prod(d.extent for d in product.sums)
    return waves * depth * threads * each + machine.launch_ns
