"""Kernels whose sizes only a call knows: vectors, register tiles and threads for any sizes.

Each Computation is a separate nest. What other sketches decide by extents is decided here as for
large ones; edges are under masks, and full tiles have no guards (`schedule.full_tiles`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.base import events
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.expr.affine import affine
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, MAX_SIZE, as_expr
from tilewright.loops.analysis.access import environment
from tilewright.loops.nodes import Kernel
from tilewright.loops.walk import loops_of
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import IMPOSSIBLE, Choices
from tilewright.schedule.space.nest import VECTORS, existing, extents, register_vectors
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.register_tile_model import (
    Tile,
    best_of,
    candidates,
)

Way = Callable[[Schedule, Computation, Context, Choices], None]


def sized(
    kernel: Kernel, computations: Sequence[Computation], at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: `<map>.vectors` in flight at a time; `<reduction>.tile`, its rows and vectors;
    `<reduction>.panels`, whether all rows process one panel of columns, which stays in the cache,
    before the next; `<reduction>.vectors` for reductions along rows; `<computation>.parallel`.
    """
    s = Schedule(kernel)
    for c in computations:
        ways = (_map, _threads) if c.is_map else (_tiles, _rows, _columns, _threads)
        for way in ways:
            trial = s.fork()
            try:
                way(trial, c, at, choose)
            except ScheduleError as error:
                if error.code == IMPOSSIBLE:
                    raise
                events.emit(
                    "kept-plain", kernel=kernel.name, part=c.name, reason=str(error)
                )
                continue
            s = trial
            break
    return s


def _free(s: Schedule, c: Computation) -> list[tuple[Dim, str]]:
    """The cc dimensions that have a loop, with its name."""
    names = set(s.loops)
    named = ((d, f"{c.name}.{d.var.name}") for d in c.dims if d.combine == CC)
    return [(d, name) for d, name in named if name in names]


def _threads(
    s: Schedule,
    c: Computation,
    at: Context,
    choose: Choices,
    made: Sequence[str] = (),
) -> None:
    """The outermost loop on all threads, nothing else. made: loops that may take its place."""
    loops = [*(name for _, name in _free(s, c)), *made]
    if loops and at.threads(choose, c.name, _worth_sharing(s, c, at)):
        s.parallel(loops[0])


def _worth_sharing(s: Schedule, c: Computation, at: Context) -> bool:
    """Whether the work of a Computation is worth waking other threads at any sizes: at the greatest
    ones, of which one that has no bound is large."""
    env = environment(s.kernel.body)
    most = [bounds(as_expr(d.size, INDEX), env)[1] for d in c.dims]
    if None in most:
        return True
    points = math.prod(n for n in most if n is not None)
    moved = (*(a.buffer for a in c.accesses), *(o.tensor for o in c.outputs))
    passed = sum(b.dtype.itemsize for b in moved) * at.costs.byte_ns
    return at.costs.worth_sharing(points * (at.costs.point_ns + passed))


def _map(s: Schedule, c: Computation, at: Context, choose: Choices) -> None:
    """The last dimension in vectors, the first on all threads."""
    free = _free(s, c)
    if not free:
        return
    lanes = at.machine.lanes(c.outputs[0].tensor.dtype)
    unrolled = choose(f"{c.name}.vectors", VECTORS, 1)
    last = free[-1][1]
    tiles, tile = _split(s, last, lanes * unrolled)
    register_vectors(s, tile, lanes)
    first = tiles if len(free) == 1 else free[0][1]
    if first in s.loops and at.threads(choose, c.name, _worth_sharing(s, c, at)):
        s.parallel(first)


def _rows(s: Schedule, c: Computation, at: Context, choose: Choices) -> None:
    """A vectorized reduction along rows, with a partial result per lane, on all threads."""
    inside = [d for d in c.combined_dims if f"{c.name}.{d.var.name}" in s.loops]
    along = (a.index[-1] is d.var for a in c.accesses for d in inside if a.index)
    columns = c.outputs[0].index[-1:]
    across = any(a.index[-1:] == columns for a in c.accesses)
    if at.exact or len(inside) != 1 or len(c.outputs) > 1 or across or not any(along):
        raise ScheduleError("it has no rows", where=f"computation {c.name}")
    lanes = at.machine.lanes(c.outputs[0].tensor.dtype)
    vectors = choose(f"{c.name}.vectors", VECTORS, 1)
    _, vector = _split(s, f"{c.name}.{inside[0].var.name}", lanes * vectors)
    before = set(s.loops)
    s.rfactor(vector)
    for name in (vector, *(name for name in s.loops if name not in before)):
        register_vectors(s, name, lanes)
    _threads(s, c, at, choose)


def _columns(s: Schedule, c: Computation, at: Context, choose: Choices) -> None:
    """Vectors along the last dimension of a result that stays in memory while the reduction runs.

    For results that are only a part of their tensor, such as all inside of a border.
    """
    out = c.outputs[0]
    inside = [f"{c.name}.{d.var.name}" for d in c.combined_dims]
    inside = [name for name in inside if name in s.loops]
    # Axes of one element, such as those of a mean over images, separate no elements.
    pairs = zip(out.index, out.tensor.extents, strict=True)
    wide = [index for index, extent in pairs if extent != 1]
    column = affine(wide[-1]).terms if wide else ()
    columns = [name for d, name in _free(s, c) if column == ((d.var, 1),)]
    if len(c.outputs) > 1 or not inside or not columns:
        raise ScheduleError("it has no columns", where=f"computation {c.name}")
    lanes = at.machine.lanes(out.tensor.dtype)
    tiles, vector = _split(s, columns[0], lanes)
    starts = s.decompose_reduction(out.tensor.name, vector)
    s.reorder(*inside, vector)
    known = extents(s.kernel)
    if all(known.get(name, MAX_SIZE) <= at.costs.taps for name in inside):
        for name in inside:
            s.unroll(name)
    for name in (*starts, vector):
        register_vectors(s, name, lanes)
    _threads(s, c, at, choose, [tiles] if tiles != vector else [])


def _split(s: Schedule, name: str, size: int) -> tuple[str, str]:
    """Tiles of a loop and the loop in one; the loop itself where it is not longer than a tile."""
    extent = next(f.trips for f in loops_of(s.kernel.body) if f.var.name == name)
    if extent is not None and extent <= size:
        return name, name
    tiles, tile = s.split(name, size, "guard")
    return tiles, tile


def _tile(
    s: Schedule,
    c: Computation,
    stores: Sequence[str],
    lanes: int,
    at: Context,
    choose: Choices,
) -> Tile:
    """The parameter `<reduction>.tile`: one that is shorter than extents may be, and whose rows
    divide those that are known; of others the tiles at the end do not count."""
    known, most = extents(s.kernel), _most(s)
    rows = [known.get(name, MAX_SIZE) for name in stores[-2:-1]]
    # Fewer columns mean more rows per tile, and partial tiles then waste too many of them.
    width = MAX_SIZE if MAX_SIZE in rows else known.get(stores[-1], MAX_SIZE)

    def fits(t: Tile) -> bool:
        sides = zip(stores[-2:], (*t.rows, t.width), strict=True)
        shorter = all(n < most[name] for name, n in sides if name not in known)
        whole = zip(rows, t.rows, strict=True)
        return shorter and all(n == MAX_SIZE or n % m == 0 for n, m in whole)

    found = candidates(rows, width, lanes, at.costs)
    tiles = {t.value: t for t in found if fits(t)}
    if not tiles:
        raise ScheduleError("no tile is as small", where=f"computation {c.name}")
    good = best_of(tiles.values(), rows, width, at.costs)
    return tiles[choose(f"{c.name}.tile", list(tiles), good.value)]


def _most(s: Schedule) -> dict[str, int]:
    """The greatest extent that each loop may have, for sizes within their bounds."""
    env = environment(s.kernel.body)
    found = ((f, bounds(f.extent, env)[1]) for f in loops_of(s.kernel.body))
    return {f.var.name: MAX_SIZE if n is None else n for f, n in found}


def _tiles(s: Schedule, c: Computation, at: Context, choose: Choices) -> None:
    """A tile of results in registers while the reduction runs: some rows by some vectors.

    The columns are the last dimension of the result.
    """
    out = c.outputs[0]
    inside = [f"{c.name}.{d.var.name}" for d in c.combined_dims]
    inside = [name for name in inside if name in s.loops]
    if len(c.outputs) > 1:
        raise ScheduleError("it has several results", where=f"computation {c.name}")
    kept = s.cache_write(out.tensor.name)
    stores = [name for name in s.loops if name.startswith(f"{kept}.w")]
    last = out.index[-1:]
    columns = [name for d, name in _free(s, c) if last == (d.var,)]
    if not inside or not columns or stores[-1:] != [f"{kept}.w{len(out.index) - 1}"]:
        raise ScheduleError("it has no tile of results", where=f"computation {c.name}")
    lanes = at.machine.lanes(out.tensor.dtype)
    tile = _tile(s, c, stores, lanes, at, choose)
    outer, vector = _split(s, stores[-1], tile.width)
    around = [*stores[:-2], outer]
    nest = [vector]
    if tile.rows:
        above, row = _split(s, stores[-2], tile.rows[-1])
        panels = choose(f"{c.name}.panels", (True, False), True)
        tiled = (outer, above) if panels else (above, outer)
        nest = [row, vector]
        around = [*stores[:-2], *tiled]
    around = [name for name in around if name not in nest]
    if tile.rows:
        s.reorder(*around, *nest)
    if around:
        s.compute_at(kept, around[-1], scope="register")
    else:
        s.set_scope(kept, "register")
    own = existing(s, [name for _, name in _free(s, c)])
    if not own:
        raise ScheduleError("one tile is all of it", where=f"computation {c.name}")
    starts = s.decompose_reduction(kept, own[0])
    s.reorder(*inside, *own)
    for loops in (list(starts), own, nest):
        for name in loops[:-1]:
            s.unroll(name)
        register_vectors(s, loops[-1], lanes)
    if around and at.threads(choose, c.name, True):
        s.parallel(around[0])
