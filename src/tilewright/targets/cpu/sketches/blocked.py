"""Products in blocks: a part of the reduction at a time, partial sums of a block in a cache.

The register tiles of `tiled` run through the whole reduction. Where that is deep, what each tile
reads leaves the caches before the next tile comes. Here all tiles of a block of results go by for
some steps of the reduction, then for the next ones. (The blocks of Goto and van de Geijn, Anatomy
of High-Performance Matrix Multiplication, 2008.)
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import ScheduleError
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Dim
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    divisors,
    existing,
    extents,
    place,
    register_vectors,
    vectorize_inner,
    written_out,
)
from tilewright.schedule.space.patterns import KernelPattern, reduction_dims
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.roles import TilePlan, plan
from tilewright.targets.cpu.sketches.tiled_reduction import pack_columns, results

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # tiles of a block along a dimension


def has_depth(pattern: KernelPattern) -> bool:
    """Whether a tiled reduction is a product whose reduction may be parted."""
    r = pattern.reduction
    if r is None or not is_contraction(r) or not reduction_dims(r):
        return False
    return _deepest(pattern).extent > 1


def blocked(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: those of `plan` and `pack_columns`; `<reduction>.block_rows` and
    `<reduction>.block_columns`, tiles of a block; `<reduction>.depth`, steps of the reduction at a
    time; `<reduction>.panels`, whether all rows of a block are processed per panel of columns;
    `<reduction>.unroll`, `<reduction>.parallel`, `<reduction>.shared`.
    """
    r = pattern.reduction
    assert r is not None
    p = plan(pattern, at, choose)
    if not p.rows:
        raise ScheduleError("blocks: the results have no rows", where=r.name)
    target, names = results(s, pattern)
    outer, inner = _blocks(s, p, names, r.name, choose)
    if outer:
        s.compute_at(target, outer[-1])
    place(s, target, at.costs.stack)
    loops = {d: f"{r.name}.{d.var.name}" for d in r.dims}
    _clear(s, target, loops, p)
    around = _tiles(s, pattern, p, loops, choose)
    _in_registers(s, target, p, loops, around[-1])
    pack_columns(s, p, [*outer, *around], loops, at, choose)
    sums = [loops[d] for d in p.reduction]
    written_out(s, sums, choose, r.name)
    vectorize_inner(s, inner, p.tile.lanes)
    if at.threads(choose, r.name, at.machine.cores > 1):
        at.share(s, outer, choose, r.name)
    return s


def _deepest(pattern: KernelPattern) -> Dim:
    assert pattern.reduction is not None
    return max(reduction_dims(pattern.reduction), key=lambda d: d.extent)


def _blocks(
    s: Schedule, p: TilePlan, names: dict[Dim, str], name: str, choose: Choices
) -> tuple[list[str], str]:
    """The loops over blocks around what uses the results, and that loop's columns.

    A block is whole tiles, so that no result is accumulated twice.
    """
    row = p.rows[-1]
    sizes = dict(zip(p.rows[:-1], p.tile.rows[:-1], strict=True))
    cut = (
        (row, p.tile.rows[-1], "block_rows"),
        (p.vector, p.tile.width, "block_columns"),
    )
    for d, tile, of in cut:
        possible = [n for n in COUNTS if n * tile <= d.extent]
        if not possible:
            raise ScheduleError("blocks: a tile has more columns than the results")
        count = choose(f"{name}.{of}", possible, possible[-1])
        sizes[d] = tile * count
    blocks = [names[d] for d in p.batch]
    inside = []
    for d, size in sizes.items():
        loop = names[d]
        if size == d.extent:
            inside.append(loop)
        elif size == 1:
            blocks.append(loop)
        else:
            block, part = s.split(loop, size, "overlap")
            blocks.append(block)
            inside.append(part)
    s.reorder(*blocks, *inside)
    return existing(s, blocks), inside[-1]


def _clear(s: Schedule, target: str, loops: dict[Dim, str], p: TilePlan) -> None:
    """The partial sums cleared by their own nest, in vectors."""
    inside = [f for f in s.loops if f in loops.values()]
    made = s.decompose_reduction(target, inside[0])
    starts = dict(zip(inside, made, strict=False))
    rows = [loops[d] for d in p.rows]
    free = existing(s, [starts[name] for name in rows if name in starts])
    column = starts[loops[p.vector]]
    if free:
        s.reorder(*free, column)
    vectorize_inner(s, column, p.tile.lanes)


def _tiles(
    s: Schedule,
    pattern: KernelPattern,
    p: TilePlan,
    loops: dict[Dim, str],
    choose: Choices,
) -> list[str]:
    """The loops over parts of the reduction and over tiles; `loops` then has the inner ones."""
    assert pattern.reduction is not None
    name = pattern.reduction.name
    deep = _deepest(pattern)
    steps = choose(f"{name}.depth", divisors(deep.extent), deep.extent)
    parts = []
    if steps < deep.extent:
        part, loops[deep] = s.split(loops[deep], steps)
        parts.append(part)
    now = extents(s.kernel)
    outer: dict[Dim, str] = {}
    sizes = dict(zip(p.rows, p.tile.rows, strict=True))
    sizes[p.vector] = p.tile.width
    for d, size in sizes.items():
        extent = now.get(loops[d], 1)
        if extent > size:
            outer[d], loops[d] = s.split(loops[d], size)
    rows = [outer[d] for d in p.rows if d in outer]
    columns = [outer[p.vector]] if p.vector in outer else []
    if choose(f"{name}.panels", (True, False), True):
        tiles = [*columns, *rows]
    else:
        tiles = [*rows, *columns]
    sums = [loops[d] for d in p.reduction]
    inner = [loops[d] for d in (*p.rows, p.vector)]
    order = [*parts, *tiles, *sums, *inner]
    s.reorder(*existing(s, order))
    around = existing(s, [*parts, *tiles])
    if not around:
        raise ScheduleError("blocks: one tile is all there is", where=name)
    return around


def _in_registers(
    s: Schedule, target: str, p: TilePlan, loops: dict[Dim, str], anchor: str
) -> None:
    """A tile's sums read into registers, added to, and stored."""
    acc = s.cache_write(target, anchor, "register")
    rows = existing(s, [loops[d] for d in p.rows])
    for name in rows:
        s.unroll(name)
    register_vectors(s, loops[p.vector], p.tile.lanes)
    for step in ("r", "w"):
        copy = [n for n in s.loops if n.startswith(f"{acc}.{step}")]
        _copied(s, existing(s, copy), p.tile.lanes)


def _copied(s: Schedule, nest: Sequence[str], lanes: int) -> None:
    """The nest between memory and registers, written out in vectors."""
    if not nest:
        return
    for name in nest[:-1]:
        s.unroll(name)
    register_vectors(s, nest[-1], lanes)
