"""Products in tiles: blocks of threads, operands fetched together, results in registers.

    blockIdx: registers of each thread = 0
              for each tile of the sums:  fetch both operands' tiles into shared memory, together
                                          multiply: each thread its rows by its columns
              what follows the product, point by point; store

Ragged tiles are filled up with zeros as they are fetched (`pad`, then `cache_read(pad=True)`), so
that no product has a guard; the store has one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import reduce
from typing import Final, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import Dim
from tilewright.expr.nodes import Load
from tilewright.loops.analysis.effects import writes
from tilewright.loops.nodes import ASYNC, For, Store
from tilewright.loops.passes.async_copies import BYTES, copied
from tilewright.loops.scopes import Scope
from tilewright.loops.walk import loops_of
from tilewright.schedule import Schedule
from tilewright.schedule.primitives.pipeline import sequence
from tilewright.schedule.space import Choices
from tilewright.schedule.space.nest import existing, extents, fuse_all
from tilewright.schedule.tree import find_buffer, find_loop
from tilewright.targets.simt.binding import (
    bind_blocks,
    bind_elements,
    fetch_together,
)
from tilewright.targets.simt.cost import ROOMS, fetch_width, padding
from tilewright.targets.simt.last_wave import (
    WHOLE,
    LastWave,
    TilePart,
    divided_sum,
    steps_along,
    tile_parts,
)
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.predict import stage_counts, tiles, waves_of
from tilewright.targets.simt.products import Product
from tilewright.targets.simt.tiling import AXES, LaunchShare, SimtTile, Tiling, tiling
from tilewright.targets.simt.totals import atomic_works

SHARERS: Final = (1, 2, 4, 8, 16, 32)  # blocks that may share a sum
CLEARING: Final = 256  # threads of a block that clears results, at most


def in_tiles(
    s: Schedule,
    product: Product,
    machine: SimtMachine,
    choose: Choices,
    exact: bool = False,
) -> None:
    """Schedule a product; see the module's docstring. exact: sums of floats are not in parts.

    parameters: `<reduction>.tile`, the tile of a block and its threads; `<reduction>.staged`,
    whether operands are staged in shared memory; `<reduction>.last_wave`, the last tiles whose sums
    are in parts, and in how many; `<reduction>.blocks`, that share each sum and add their parts to
    the results atomically, where these may come in any order; `<operand>.room`, padding elements
    between the rows of a staged tile; `<reduction>.stages`, tiles of an operand at once: with n,
    the (n-1)th next is fetched while one is used, along all sums, and threads synchronize once per
    step. Raises ScheduleError if a primitive fails.
    """
    name = product.name
    staged = choose(f"{name}.staged", (True, False), machine.shared_pays)
    fitting = tiles(product, machine, staged, exact)
    if not fitting:
        raise ScheduleError("no tile fits the machine", where=f"reduction {name}")
    plan = tiling(product, SimtTile(*choose(f"{name}.tile", fitting, fitting[0])))
    waves = waves_of(plan, machine, staged, exact)
    wave = LastWave(*choose(f"{name}.last_wave", waves, waves[0]))
    form = _form(plan, machine, staged, choose)
    counts = [1] if wave != WHOLE else shared_sums(plan, machine)
    if len(counts) > 1 and (blocks := choose(f"{name}.blocks", counts, 1)) > 1:
        part, loop = with_shared_sums(s, plan, blocks, machine, "register")
        _schedule(s, part, machine, form)
        s.atomic(loop, "blockIdx.y")
        return
    target, last = results(s, product)
    grid = grid_of(s, plan, last)
    for part in tile_parts(s, plan, target, last, grid, wave, "register", machine):
        _schedule(s, part, machine, form)


def shared_sums(plan: Tiling, machine: SimtMachine) -> list[int]:
    """How many blocks may share the sum of each tile; 1 alone if nothing else is possible.

    Several where the product's results are stored as they are, in any order, and where there is a
    sum that is divided, of a step or more for each.
    """
    p, d = plan.product, divided_sum(plan)
    if p.epilogue is not None or d is None or not atomic_works(p.reduction, machine):
        return [1]
    steps = steps_along(plan, d)
    deep = {ceil_div(steps, n) for n in SHARERS if n <= steps}
    return sorted(ceil_div(steps, n) for n in deep)


def with_shared_sums(
    s: Schedule, plan: Tiling, blocks: int, machine: SimtMachine, scope: Scope
) -> tuple[TilePart, str]:
    """The tiles of blocks that share each sum, and the loop over the parts of sums around them,
    which becomes atomic once these are scheduled. scope: of a block's accumulators.

    Results are cleared by a launch of their own. requires: `shared_sums`.
    """
    p, d = plan.product, divided_sum(plan)
    assert d is not None
    out = p.reduction.outputs[0].tensor.name
    sums = {e: f"{p.name}.{e.var.name}" for e in p.reduction.dims}
    loops = existing(s, list(sums.values()))
    first, *_ = s.decompose_reduction(out, loops[0])
    nest, _ = find_loop(s.kernel, first, "bind")
    bind_elements(s, nest, min(CLEARING, machine.block_threads))
    deep = plan.depths[d] * ceil_div(steps_along(plan, d), blocks)
    s.pad(sums[d], deep)
    part, sums[d] = s.split(sums[d], deep)
    s.reorder(part, *existing(s, list(sums.values())))
    (target,) = s.rfactor(part, "global")
    index = p.reduction.outputs[0].index
    place = {e: index.index(e.var) for e in p.reduction.dims if e.var in index}
    for e, n in plan.sizes.items():
        if e is not d:
            s.pad(sums[e], n)
        if e in place:
            s.pad(f"{target}.c{place[e]}", n)
    s.merge(f"{part}.clear", part)
    last = {e: f"{target}.m{n}" for e, n in place.items()}
    grid = [x for x in _blocks(s, plan, last) if x in extents(s.kernel)]
    adding = f"{part}.combine"
    s.compute_at(target, [adding, *grid][-1], scope=scope)
    tiled = [e for e in (*p.rows, *p.columns) if plan.shares[e].size > 1]
    zeros = {e: f"{target}.c{place[e]}" for e in tiled}
    stores = {e: f"{last[e]}.i" for e in tiled}
    fused = fuse_all(s, grid)
    if fused is None:
        raise ScheduleError("the whole result is one tile", where=f"reduction {p.name}")
    share = LaunchShare(plan.blocks * blocks, ceil_div(plan.steps, blocks))
    mine = replace(plan, share=share)
    return TilePart(mine, target, [fused], sums, stores, zeros), adding


class TileForm(NamedTuple):
    """What all tiles of a product have in common. rooms: elements between the rows of an operand's
    tile in shared memory, of those that are there. stages: tiles of an operand at once."""

    rooms: Mapping[Load, int]
    stages: int


def _form(
    plan: Tiling, machine: SimtMachine, staged: bool, choose: Choices
) -> TileForm:
    p = plan.product
    if not staged:
        return TileForm({}, choose(f"{p.name}.stages", [1], 1))
    rooms = {
        read: choose(f"{read.buffer.name}.room", ROOMS, padding(plan, read, machine))
        for read in (p.left, p.right)
    }
    return TileForm(rooms, choose(f"{p.name}.stages", stage_counts(plan, machine), 1))


def _schedule(
    s: Schedule, part: TilePart, machine: SimtMachine, form: TileForm
) -> None:
    """Schedule the tiles of one kind."""
    plan, sums = part.plan, dict(part.sums)
    outer, steps = _sums(s, plan, sums)
    loops = {d: sums[d] for d in _tiled_dims(plan)}
    zeros = cleared(s, part, part.target)
    s.reorder(*existing(s, [*outer, *steps, *loops.values()]))
    within = existing(s, outer)
    if form.stages > 1 and within:
        within = [reduce(s.fuse, within)]
    around = [*part.blocks, *within][-1]
    fetched = []
    for read, room in form.rooms.items():
        width = fetch_width(plan, read, room, machine)
        copy = TileCopy(room, width, plan.threads)
        fetched.append(fetch_tile(s, read, around, copy))
    _in_threads(s, plan, {d: zeros[d] for d in loops}, ())
    _in_threads(s, plan, loops, existing(s, steps))
    _in_threads(s, plan, {d: part.stores[d] for d in loops}, ())
    # A block of one step has no next one.
    stages = min(form.stages, extents(s.kernel)[around]) if within else 1
    if stages > 1:
        fetch_ahead(s, around, fetched, stages)
        note_copies(s, fetched, machine)
    bind_blocks(s, part.blocks)


def cleared(s: Schedule, part: TilePart, target: str) -> Mapping[Dim, str]:
    """The loops that clear a block's accumulators, by dimension: from the outermost one of several
    iterations on, made apart from the sums if they are not yet."""
    if part.zeros is not None:
        return part.zeros
    nest = free_nest(s, part)
    zero = s.decompose_reduction(target, part.sums[nest[0]])
    return dict(zip(nest, zero, strict=True))


def free_nest(s: Schedule, part: TilePart) -> list[Dim]:
    """The dimensions of a block's results in the program's order, from the outermost one of several
    iterations on."""
    there, free = extents(s.kernel), part.plan.shares
    nest = [d for d in part.sums if d in free and part.sums[d] in there]
    while nest[0] not in part.stores:
        nest.pop(0)
    return nest


def results(s: Schedule, p: Product) -> tuple[str, dict[Dim, str]]:
    """The accumulators, an intermediate, and the loops of their reader, by dimension."""
    out = p.reduction.outputs[0]
    if p.epilogue is not None:
        loops = {d: f"{p.epilogue.name}.{e.var.name}" for d, e in p.last}
        return out.tensor.name, loops
    target = s.cache_write(out.tensor.name, None, "register")
    place = {i: n for n, i in enumerate(out.index)}
    return target, {d: f"{target}.w{place[d.var]}" for d, _ in p.last}


def _tiled_dims(plan: Tiling) -> list[Dim]:
    """The dimensions with more than one iteration per block, rows before columns."""
    dims = (*plan.product.rows, *plan.product.columns)
    return [d for d in dims if plan.shares[d].size > 1]


def grid_of(s: Schedule, plan: Tiling, last: Mapping[Dim, str]) -> list[str]:
    """Make loops over the blocks of the grid around the readers of the results, outermost first;
    pad the product to whole tiles.

    last: the loops of the results' reader. Raises ScheduleError if there is only one block.
    """
    name = plan.product.name
    for d, n in plan.sizes.items():
        s.pad(f"{name}.{d.var.name}", n)
    blocks = _blocks(s, plan, last)
    grid = [loop for loop in blocks if loop in extents(s.kernel)]
    if not grid:
        raise ScheduleError("the whole result is one tile", where=f"reduction {name}")
    return grid


def _blocks(s: Schedule, plan: Tiling, last: Mapping[Dim, str]) -> list[str]:
    """Loops over blocks around the readers of the results, outermost first."""
    p = plan.product
    outer, inner = [last[d] for d in p.batch], []
    for d in (*p.rows, *p.columns):
        if plan.shares[d].size == 1:
            outer.append(last[d])
            continue
        block, tile = s.split(last[d], plan.shares[d].size, "guard")
        outer.append(block)
        inner.append(tile)
    s.reorder(*outer, *inner)
    return outer


def _sums(
    s: Schedule, plan: Tiling, sums: Mapping[Dim, str]
) -> tuple[list[str], list[str]]:
    """The loops over tiles of the sums, and those within a tile."""
    outer: list[str] = []
    inner: list[str] = []
    for d, n in plan.depths.items():
        o, i = s.split(sums[d], n)
        outer.insert(0, o)
        inner.insert(0, i)
    return outer, inner


def fetch_ahead(
    s: Schedule,
    loop: str,
    fetched: Collection[str],
    stages: int,
    spare: int = 0,
) -> None:
    """Buffer tiles: fetch those of a later iteration before this one's are used.

    stages: tiles at once; spare: of these, what earlier iterations may still use.
    """
    f, _ = find_loop(s.kernel, loop, "pipeline")
    made = [{b.name for b in writes(stmt)} for stmt in sequence(f.body).stmts]
    lags = [(stages - 1 - spare) * names.isdisjoint(fetched) for names in made]
    s.pipeline(loop, *lags, **({"spare": spare} if spare else {}))


def note_copies(s: Schedule, fetched: Collection[str], machine: SimtMachine) -> None:
    """Copy vectors that are fetched asynchronously, if the machine has such copies."""
    for f in loops_of(s.kernel.body) if machine.async_copies else ():
        if f.kind == "vector" and _is_copy(f, fetched):
            s.annotate(f.var.name, ASYNC, 1)


def _is_copy(f: For, fetched: Collection[str]) -> bool:
    """Whether a vector loop fetches a size that the machine copies asynchronously."""
    store = f.body
    if not isinstance(store, Store) or store.buffer.name not in fetched:
        return False
    size = (f.trips or 0) * store.buffer.dtype.itemsize
    return size in BYTES and copied(store.value) is not None


class TileCopy(NamedTuple):
    """How a tile is copied. room: elements between its rows. width: elements of a thread at a time.
    threads: of the block, by axis, the fastest first."""

    room: int
    width: int
    threads: Mapping[str, int]


def fetch_tile(s: Schedule, read: Load, loop: str, how: TileCopy) -> str:
    """Fetch the part of an operand that each iteration of a loop reads into shared memory; its
    buffer."""
    name = s.cache_read(read.buffer.name, loop, "shared", pad=True)
    copied, _ = find_buffer(s.kernel, name, "cache_read")
    rank = len(copied.shape)
    loops = existing(s, [f"{name}.r{n}" for n in range(rank)])
    if how.room and rank > 1:
        s.storage_align(name, rank - 2, copied.shape[-1] + how.room, 0)
    fetch_together(s, loops, how.threads, how.width)
    return name


def _in_threads(
    s: Schedule, plan: Tiling, loops: Mapping[Dim, str], between: Collection[str]
) -> None:
    """Distribute a tile to threads, with unrolled elements of each. between: loops around these."""
    bound: dict[str, str] = {}
    parts = []
    for d, loop in loops.items():
        share = plan.shares[d]
        if share.axis and share.each > 1:
            part, bound[share.axis] = s.split(loop, share.threads)
            parts.append(part)
        elif share.axis:
            bound[share.axis] = loop
        else:
            parts.append(loop)
    order = [bound[axis] for axis in reversed(AXES) if axis in bound]
    s.reorder(*order, *between, *parts)
    for part in parts:
        s.unroll(part)
    for axis, loop in bound.items():
        s.bind(loop, axis)
