"""Maps that read along another dimension than they write: tiles through shared memory.

    for i: for j: y[i, j] = f(x[j, i])
    ->  blockIdx.x: a tile: threads copy it, neighbors along i; threads write it, neighbors along j

A row of the tile is one element longer than the banks of shared memory are many, so that threads
that read a column of it do not wait for one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.affine import Affine
from tilewright.expr.nodes import Load
from tilewright.loops.passes.shared_room import room_for
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.inlining import inlined
from tilewright.schedule.space.nest import existing, extents, fuse_all
from tilewright.schedule.space.patterns import address, free_dims, stride, uses
from tilewright.schedule.tree import find_buffer
from tilewright.targets.simt.binding import over_threads, run_at_once
from tilewright.targets.simt.cost import GAIN
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.rows import suits
from tilewright.targets.simt.transpose_cost import TransposeShape, transpose_ns

TILES: Final = (32, 16, 8)  # elements of a side
ROWS: Final = (8, 4, 16, 2, 1)  # of a tile that the threads of a block do at once


class _Turned(NamedTuple):
    """A map that reads along `along` and writes along `across`."""

    read: Load
    along: Dim
    across: Dim


def _turned(c: Computation) -> _Turned | None:
    if not c.is_map or len(c.outputs) != 1:
        return None
    place = address(c.outputs[0].tensor[c.outputs[0].index])
    across = [d for d in free_dims(c) if stride(place, d.var) == 1]
    for a in c.accesses if across else ():
        steps = {d: stride(address(a), d.var) for d in free_dims(c)}
        along = [d for d, step in steps.items() if step == 1]
        alone = sum(b.buffer is a.buffer for b in c.accesses) == 1
        far = (steps[across[0]] or 0) > 1 and None not in steps.values()
        if alone and far and along and min(along[0].extent, across[0].extent) > 1:
            return _Turned(a, along[0], across[0])
    return None


def _sides(t: _Turned, machine: SimtMachine) -> list[int]:
    """Tiles that fit: a row for the banks and one more, and threads of at least one row."""
    row = (machine.banks + 1) * t.read.dtype.itemsize
    most = min(machine.block_threads, machine.banks)
    return [n for n in TILES if n <= most and room_for(n * row) <= machine.shared]


def is_transpose(computations: Sequence[Computation], machine: SimtMachine) -> bool:
    """Whether a group of maps ends in one that pays to be done by tiles."""
    found = _turned(computations[-1]) if computations else None
    if found is None or not all(c.is_map and suits(c) for c in computations):
        return False
    return machine.shared_pays and bool(_sides(found, machine))


def by_tiles(
    s: Schedule,
    computations: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    """See the module's docstring. requires: `is_transpose`.

    parameters: those of `inlined`; `tile`, its sides; `rows`, rows of a tile that threads copy at
    once. Raises ScheduleError if maps before it remain separate launches.
    """
    rest = list(computations)
    if len(rest) > 1:
        s, rest = inlined(s, rest, choose)
    found = _turned(rest[0]) if len(rest) == 1 else None
    if found is None:
        raise ScheduleError("the rest after inlining is not a single transpose")
    s = s.fork()
    sides = _sides(found, machine)
    c = rest[0]
    shape = _shape(c, found)
    times = {
        n: transpose_ns(shape, n, _row_counts(n, machine)[0], machine) for n in sides
    }
    best = min(sides, key=times.__getitem__)
    gains = times[best] * GAIN < times[sides[0]]
    side = choose("tile", sides, best if gains else sides[0])
    counts = _row_counts(side, machine)
    rows = choose("rows", counts, counts[0])
    along, across = (f"{c.name}.{d.var.name}" for d in (found.along, found.across))
    loops = existing(s, [f"{c.name}.{d.var.name}" for d in c.dims])
    for loop in loops:
        run_at_once(s, loop)
    others = [n for n in loops if n not in (along, across)]
    s.reorder(*others, along, across)
    io, jo, ii, ji = s.tile(along, across, side, side, tail="guard")
    copied = s.cache_read(found.read.buffer.name, jo, "shared")
    axes = [_axis(found.read, d) for d in (found.across, found.along)]
    far, near = (f"{copied}.r{n}" for n in axes)
    tile, _ = find_buffer(s.kernel, copied, "storage_align")
    if tile.shape[axes[1]] * tile.shape[axes[0]] != tile.size or axes[0] > axes[1]:
        raise ScheduleError(
            f"the part of {found.read.buffer.name} that is read is not a tile"
        )
    s.storage_align(copied, axes[1] - 1, machine.banks, 1)
    for slow, fast in ((far, near), (ii, ji)):
        over_threads(s, existing(s, [fast]), side, 1)
        over_threads(s, existing(s, [slow]), rows, side, "threadIdx.y")
    grid = fuse_all(s, [n for n in (*others, io, jo) if n in extents(s.kernel)])
    if grid is not None:
        s.bind(grid, "blockIdx.x")
    return s


def _row_counts(side: int, machine: SimtMachine) -> list[int]:
    return [n for n in ROWS if n <= side and n * side <= machine.block_threads]


def _shape(c: Computation, found: _Turned) -> TransposeShape:
    """What the cost depends on."""
    out = c.outputs[0]
    others = [d for d in free_dims(c) if d not in (found.along, found.across)]

    def steps(form: Affine, first: Dim) -> tuple[int, ...]:
        return tuple(stride(form, d.var) or 0 for d in (first, *others))

    return TransposeShape(
        found.along.extent,
        found.across.extent,
        tuple(d.extent for d in others),
        steps(address(found.read), found.across),
        steps(address(out.tensor[out.index]), found.along),
        (found.read.dtype.itemsize, out.tensor.dtype.itemsize),
    )


def _axis(a: Load, d: Dim) -> int:
    """The dimension of a buffer that a loop indexes."""
    return next(n for n, i in enumerate(a.index) if uses(i, d.var))
