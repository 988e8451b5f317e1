"""Batch dimensions whose results interleave: one step along them stays in a cache line.

An example is shuffled channels: results of different groups are neighbors. If such a dimension were
outermost, each part of the result would be written in pieces, one per step, and threads that share
the steps would write the same lines. So all steps run for one tile before the next tile: its lines
are written once, by one thread.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.patterns import KernelPattern, address, stride
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.roles import TilePlan, result_of


def interleaved(
    p: TilePlan, pattern: KernelPattern, at: Context, choose: Choices
) -> TilePlan:
    """The plan with these dimensions of its batch as `close`.

    parameter: `<reduction>.interleaved`, whether all of their steps run per tile, if there are any.
    """
    r = pattern.reduction
    assert r is not None
    out, of = result_of(pattern)
    steps = {d: stride(address(out), of[d].var) for d in p.batch}
    line = at.machine.line // out.dtype.itemsize
    close = tuple(
        d for d, step in steps.items() if step is not None and abs(step) < line
    )
    if not close:
        return p
    far = tuple(d for d in p.batch if d not in close)
    new = replace(p, batch=far, close=close)
    enough = _tiles(new) >= at.costs.shares * at.machine.cores
    good = enough and _fits(new, out.dtype.itemsize, at.costs)
    if choose(f"{r.name}.interleaved", (True, False), good):
        return new
    return p


def _tiles(p: TilePlan) -> int:
    """What is left to share."""
    rows = (-(-d.extent // f) for d, f in zip(p.rows, p.tile.rows, strict=True))
    columns = -(-p.vector.extent // p.tile.width)
    return math.prod(d.extent for d in p.batch) * math.prod(rows) * columns


def _fits(p: TilePlan, itemsize: int, costs: CostModel) -> bool:
    """Whether results stay in the first cache until they are whole, and operands in the second."""
    steps = math.prod(d.extent for d in p.close)
    rows = math.prod(p.tile.rows)
    depth = math.prod(d.extent for d in p.reduction)
    made = steps * rows * p.tile.width * itemsize
    read = steps * depth * (rows + p.tile.width) * itemsize
    m = costs.machine
    if not (costs.half * made <= m.l1):
        return False
    return costs.half * read <= m.l2
