"""The last wave of a product's tiles: their sums in parts where units would have nothing to do.

    blockIdx: the tiles of all full waves, as usual
    blockIdx: for each of the last tiles, a part of its sum -> workspace
    each element of the last tiles: add its parts in their order; what follows; store

A machine whose units run `units` blocks at a time is idle in the last wave but for what is left of
the tiles. Dealing out steps instead of tiles is stream-k (Osama et al. 2023, "Stream-K:
Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU"); as in its
hybrid form, only tiles of the last one or two waves are divided, here evenly. Parts are added in
one order by a launch of its own, so results are the same each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import Dim
from tilewright.expr.nodes import Var
from tilewright.loops.scopes import Scope
from tilewright.schedule import Schedule
from tilewright.schedule.space.nest import extents, fuse_all
from tilewright.schedule.tree import find_loop
from tilewright.targets.simt.binding import bind_elements
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.tiling import LaunchShare, Tiling

PARTS: Final = 8  # of a sum, at most
WAVES: Final = 4  # of parts, at most: of two waves of tiles, each may be in two parts
THREADS: Final = 256  # of a block that adds parts, at most


class LastWave(NamedTuple):
    """tiles: whose sums are in parts, the last ones. parts: of each sum."""

    tiles: int
    parts: int


WHOLE: Final = LastWave(0, 1)
Timed = Callable[[Tiling], float | None]


@dataclass(frozen=True, slots=True)
class TilePart:
    """Tiles of a product that are computed in one way, on the way to their schedule.

    target: the buffer of a block's accumulators. blocks: the loops over blocks, outermost first.
    sums, stores: the loops that compute a block's results and that store them, by dimension.
    zeros: those that clear them; None where these are not apart from the sums.
    """

    plan: Tiling
    target: str
    blocks: Sequence[str]
    sums: Mapping[Dim, str]
    stores: Mapping[Dim, str]
    zeros: Mapping[Dim, str] | None = None


# -- the model


def shares(plan: Tiling, wave: LastWave) -> tuple[Tiling, Tiling]:
    """What the blocks of full waves do, and those of the last tiles."""
    full = LaunchShare(plan.blocks - wave.tiles, plan.steps)
    d = divided_sum(plan)
    steps = 1 if d is None else steps_along(plan, d)
    each = plan.steps // steps * ceil_div(steps, wave.parts)
    parts = LaunchShare(wave.tiles * wave.parts, each)
    return replace(plan, share=full), replace(plan, share=parts)


def workspace_bytes(plan: Tiling, wave: LastWave) -> int:
    """Bytes of all parts of the last tiles' results."""
    size = math.prod(s.size for s in plan.shares.values()) * plan.product.itemsize
    return 0 if wave == WHOLE else size * wave.tiles * wave.parts


def time_of(
    plan: Tiling, wave: LastWave, machine: SimtMachine, timed: Timed
) -> float | None:
    """Nanoseconds of a product with this last wave: its launches, of which each waits for the one
    before, and the parts, which are written once and read once. timed: the time of one launch of
    tiles; None if these do not fit the machine."""
    if wave == WHOLE:
        return timed(plan)
    times = [timed(share) for share in shares(plan, wave)]
    if None in times:
        return None
    moved = 2 * workspace_bytes(plan, wave) / machine.bandwidth
    return sum(t for t in times if t is not None) + moved + machine.launch_ns


def last_waves(
    plan: Tiling, machine: SimtMachine, timed: Timed, exact: bool
) -> list[LastWave]:
    """The forms of the last wave, the fastest first; exact: sums of floats are not in parts."""
    found = {}
    for wave in (WHOLE, *_possible(plan, machine, exact)):
        time = time_of(plan, wave, machine, timed)
        if time is not None:
            found[wave] = time
    return sorted(found, key=lambda wave: (found[wave], wave)) or [WHOLE]


def best_wave(
    plan: Tiling, machine: SimtMachine, timed: Timed, exact: bool
) -> tuple[LastWave, float | None]:
    """The fastest form, and its nanoseconds; None if the tiles do not fit the machine.

    Forms that would take longer even if parts took no time are not looked at: many tiles are.
    """
    best, least = WHOLE, timed(plan)
    launches = 2 * machine.launch_ns
    if least is None or least <= launches:
        return best, least
    for tiles, waves in groupby(_possible(plan, machine, exact), lambda w: w.tiles):
        full = timed(shares(plan, LastWave(tiles, 1))[0])
        if full is None or full + launches >= least:
            continue
        for wave in waves:
            time = time_of(plan, wave, machine, timed)
            if time is not None and time < least:
                best, least = wave, time
    return best, least


def _possible(plan: Tiling, machine: SimtMachine, exact: bool) -> Iterator[LastWave]:
    """Parts of the tiles of a last wave that is not full, or of these and of those of the wave
    before: as many as fit into some waves, and none without a step."""
    left, d = plan.blocks % machine.units, divided_sum(plan)
    is_float = plan.product.reduction.outputs[0].tensor.dtype.is_float
    if not left or d is None or (exact and is_float):
        return
    steps = steps_along(plan, d)
    for tiles in (left, left + machine.units):
        if tiles >= plan.blocks:
            continue
        most = (waves * machine.units // tiles for waves in range(1, WAVES + 1))
        deep = {ceil_div(steps, min(max(n, 1), PARTS)) for n in most}
        counts = {ceil_div(steps, n) for n in deep}
        yield from (LastWave(tiles, n) for n in sorted(counts - {1}))


def divided_sum(plan: Tiling) -> Dim | None:
    """The sum that is divided: of those that are an index of both operands by themselves, that of
    the most steps. Padding of others, such as a window, would be a test of no single index."""
    p = plan.product
    alone = [
        {i for i in read.index if isinstance(i, Var)} for read in (p.left, p.right)
    ]
    able = [d for d in plan.depths if all(d.var in found for found in alone)]
    return max(able, key=partial(steps_along, plan), default=None)


def steps_along(plan: Tiling, d: Dim) -> int:
    """Steps of a block along a sum."""
    return ceil_div(d.extent, plan.depths[d])


# -- the schedule


def tile_parts(
    s: Schedule,
    plan: Tiling,
    target: str,
    last: Mapping[Dim, str],
    grid: Sequence[str],
    wave: LastWave,
    scope: Scope,
    machine: SimtMachine,
) -> list[TilePart]:
    """Divide tiles into those of full waves and the last ones, whose sums become parts. Where the
    last wave is whole, there is one kind of tile.

    target: the accumulators, an intermediate, which each block gets in a scope of memory. last,
    grid: the loops of their reader, by dimension, and those over blocks. The blocks are not bound
    yet, but for those that add the parts. Raises ScheduleError if a primitive fails.
    """
    p = plan.product
    sums = {d: f"{p.name}.{d.var.name}" for d in p.reduction.dims}
    tiled = [d for d in (*p.rows, *p.columns) if plan.shares[d].size > 1]
    stores = {d: f"{last[d]}.i" for d in tiled}
    if wave == WHOLE:
        s.compute_at(target, grid[-1], scope=scope)
        return [TilePart(plan, target, grid, sums, stores)]
    tiles = fuse_all(s, grid)
    assert tiles is not None
    full, rest = s.partition_loop(tiles, plan.blocks - wave.tiles)
    copy, *copies = s.duplicate(target, rest)
    there = extents(s.kernel)
    names = dict(zip((x for x in sums.values() if x in there), copies, strict=True))
    copied = {d: names[loop] for d, loop in sums.items() if loop in names}
    readers, kept = (
        {d: loop + part.removeprefix(tiles) for d, loop in stores.items()}
        for part in (rest, full)
    )
    first, second = shares(plan, wave)
    tail = TilePart(second, copy, [rest], copied, readers)
    divided = _divided(s, tail, wave.parts, scope, machine)
    s.compute_at(target, full, scope=scope)
    return [TilePart(first, target, [full], sums, kept), divided]


def _divided(
    s: Schedule, tail: TilePart, parts: int, scope: Scope, machine: SimtMachine
) -> TilePart:
    """The sums of tiles as parts in a workspace, which a launch of its own adds.

    tail: the tiles, whose results are computed for all of them, and stored by the loop over blocks.
    """
    plan, sums = tail.plan, dict(tail.sums)
    (tiles,), d = tail.blocks, divided_sum(tail.plan)
    assert d is not None
    deep = plan.depths[d] * ceil_div(steps_along(plan, d), parts)
    s.compute_at(tail.target, tiles)
    s.pad(sums[d], deep)
    part, sums[d] = s.split(sums[d], deep)
    s.decompose_reduction(tail.target, next(iter(sums.values())))
    s.reorder(part, *sums.values())
    (work,) = s.rfactor(part, "global")
    s.expand(work, tiles)
    s.expand(tail.target, tiles)
    blocks = s.fission(tiles, 1)
    s.merge(tiles, s.fission(blocks, 2))  # clears the sums, and adds the parts to these
    *_, reader = tail.stores.values()
    s.compute_at(tail.target, reader, scope="register")
    nest, _ = find_loop(s.kernel, tiles, "bind")
    bind_elements(s, nest, min(THREADS, machine.block_threads))
    part, other = f"{part}.clear", part
    s.merge(part, other)
    held = s.cache_write(work, part, scope)
    index = plan.product.reduction.outputs[0].index
    place = {d: index.index(d.var) for d in tail.stores}
    zeros = {d: f"{work}.c{place[d]}" for d in tail.stores}
    stores = {d: f"{held}.w{place[d] + 2}" for d in tail.stores}
    return TilePart(plan, held, [blocks, part], sums, stores, zeros)
