"""Images whose channels are last, copied with the axis of the vectors last if windows share them.

In the order in which they are read, each element would be copied once for each window that it is
in: 81 times for 9x9 windows of an image whose few results are rows. The copy is of the whole image,
or a block of its rows at a time if it is large: then the block stays in the cache until it is read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Buffer
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import existing, place, spread
from tilewright.schedule.space.patterns import address, free_dims, stride, uses
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.register_transpose import (
    move_last,
    shares,
    transpose,
    transposed_nest,
)
from tilewright.targets.cpu.sketches.roles import TilePlan


@dataclass(frozen=True, slots=True)
class Turned:
    """axes: those that are moved last, by image. rows: of results whose windows are copied at a
    time; 0: the image is copied whole, before them."""

    axes: Mapping[Buffer, int]
    rows: int = 0


NONE_TURNED: Final = Turned({})


def turned(
    r: Computation,
    p: TilePlan,
    guarded: Collection[Buffer],
    at: Context,
    choose: Choices,
) -> Turned:
    """The images that are turned, but for those `guarded`, which are copied with their padding.

    parameters: `turn.<buffer>`, whether it is; `turn.<buffer>.rows`, see `Turned`.
    """
    axes = {}
    for buffer in dict.fromkeys(a.buffer for a in p.columns):
        axis = _turned_axis(buffer, r, p.vector)
        if axis is None or buffer in at.constants or buffer in guarded:
            continue
        if choose(f"turn.{buffer.name}", (True, False), True):
            axes[buffer] = axis
    rows = 0
    if len(axes) == 1:
        (buffer,) = axes
        rows = _rows(buffer, r, p, at, choose)
    return Turned(axes, rows)


def block_of_rows(
    s: Schedule, t: Turned, p: TilePlan, names: Mapping[Dim, str], outer: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The loops down to that over blocks of rows, and those within. outer: outside of the tiles.

    None of the first kind if the rows are not the first loops: then blocks would be copied again.
    """
    around = [names[d] for d in p.batch]
    if not t.rows or list(outer[: len(around)]) != around:
        return [], list(outer)
    block, row = s.split(around[-1], t.rows, "overlap")
    return [*around[:-1], block], [row, *outer[len(around) :]]


def turn(
    s: Schedule, t: Turned, anchor: str | None, at: Context, choose: Choices
) -> None:
    """Copy the images. anchor: the loop around each block's copy; None for one of the whole.

    parameters: those of `copy_fast`.
    """
    for buffer, axis in t.axes.items():
        new = s.cache_read(buffer.name, anchor, "global")
        rank = len(buffer.shape)
        move_last(s, new, axis, rank)
        nest = [f"{new}.r{n}" for n in range(rank)]
        shared = anchor is None
        copy_fast(s, nest, f"pack.{buffer.name}", buffer, at, choose, shared=shared)
        if not shared:
            place(s, new, at.costs.stack)


def copy_fast(
    s: Schedule,
    nest: list[str],
    name: str,
    buffer: Buffer,
    at: Context,
    choose: Choices,
    shared: bool = True,
) -> None:
    """The nest that packs an operand of every run: its tiles in registers, on all threads.

    name: of the parameters. shared: whether threads may share it.
    """
    crossed = transposed_nest(s, nest, at.machine)
    outer = existing(s, nest[:2])
    if crossed is not None and choose(f"{name}.tiles", (True, False), True):
        outer = transpose(s, crossed, at.costs, choose, name)
    if shared and at.costs.worth_sharing(buffer.size * at.costs.step_ns):
        spread(s, shares(s, outer, at.costs))


def _turned_axis(buffer: Buffer, r: Computation, vector: Dim) -> int | None:
    """The axis along which vectors read a buffer, one element per lane, if that is not its last and
    its elements are read in several places each; None else."""
    found = [a for a in r.accesses if a.buffer is buffer]
    (a, *others) = found
    axes = [n for n, i in enumerate(a.index) if uses(i, vector.var)]
    read = math.prod(d.extent for d in r.dims if any(uses(i, d.var) for i in a.index))
    if others or len(axes) != 1 or read <= buffer.size:
        return None
    if stride(affine(a.index[axes[0]]), vector.var) != 1:
        return None
    return axes[0] if stride(address(a), vector.var) != 1 else None


def _rows(
    buffer: Buffer, r: Computation, p: TilePlan, at: Context, choose: Choices
) -> int:
    """Rows of results of a block, so many that a quarter of what it copies, at most, is copied for
    another block, too; 0 if there are no such blocks.

    requires, else 0: the loops outside of the tiles go along axes of the image, one by one, windows
    overlap along none of these but the last, there is no loop around all of them, and blocks may
    overlap. By default 0 as well for an image that caches hold beside its copy, and where there are
    too few blocks for all cores.
    """
    if at.around or at.reshaped:
        return 0
    overlaps = [_overlap(buffer, r, d) for d in p.batch]
    if not overlaps or any(n is None for n in overlaps):
        return 0
    *around, again = (math.inf if n is None else n for n in overlaps)
    if any(n > 0 for n in around):
        return 0
    extent = p.batch[-1].extent
    rows = max(1, math.ceil((at.costs.quarter - 1) * again))
    possible = [n for n in (rows, 2 * rows, 4 * rows) if n < extent]
    if not possible:
        return 0
    size = buffer.size * buffer.dtype.itemsize
    large = size > at.costs.large * at.machine.l2
    enough = extent // rows >= at.costs.blocks * at.machine.cores
    good = rows if large and enough else 0
    return choose(f"turn.{buffer.name}.rows", [0, *possible], good)


def _overlap(buffer: Buffer, r: Computation, d: Dim) -> float | None:
    """How many steps along a free dimension share what one of them reads of a buffer; None if other
    free dimensions move along the same axis, or none does."""
    (a,) = (a for a in r.accesses if a.buffer is buffer)
    found = [affine(i) for i in a.index if uses(i, d.var)]
    if len(found) != 1:
        return None
    steps = {x: stride(found[0], x.var) for x in r.dims}
    step = steps.pop(d)
    if not step or any(steps[x] != 0 for x in free_dims(r) if x is not d):
        return None
    if any(n is None for n in steps.values()):
        return None
    window = sum(abs(n or 0) * (x.extent - 1) for x, n in steps.items()) + 1
    return max(0, window - abs(step)) / abs(step)
