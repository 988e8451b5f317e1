"""Batch dimensions whose results interleave: one step along them stays in a cache line.

Shuffled channels are like that: results of different groups are neighbours. Were such a dimension
the outermost, each part of the result would be written in pieces, one per step, and threads that
share the steps would write the same lines. So a tile goes by all of its steps before the next tile
does: its lines are written once, by one thread.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.schedule.sketch.across import SHARES
from tilewright.schedule.sketch.choices import Choices
from tilewright.schedule.sketch.classify import Kind, address, stride
from tilewright.schedule.sketch.context import Context, Machine
from tilewright.schedule.sketch.roles import Plan, result_of

LINE = 64  # bytes that cores exchange at once
CACHE_SHARE = 2  # what a tile reads and makes in all the steps takes at most this part of a cache


def interleaved(p: Plan, kind: Kind, at: Context, choose: Choices) -> Plan:
    """The plan with those dimensions of its batch as `close`.

    parameter: `<reduction>.interleaved`, whether a tile goes by all of their steps, where there
    are any.
    """
    r = kind.reduction
    assert r is not None
    out, of = result_of(kind)
    steps = {d: stride(address(out), of[d].var) for d in p.batch}
    line = LINE // out.dtype.itemsize
    close = tuple(d for d, step in steps.items() if step is not None and abs(step) < line)
    if not close:
        return p
    far = tuple(d for d in p.batch if d not in close)
    new = replace(p, batch=far, close=close)
    good = _tiles(new) >= SHARES * at.machine.cores and _fits(new, out.dtype.itemsize, at.machine)
    return new if choose(f"{r.name}.interleaved", (True, False), good) else p


def _tiles(p: Plan) -> int:
    """What is left to share."""
    rows = (-(-d.extent // f) for d, f in zip(p.rows, p.tile.rows, strict=True))
    columns = -(-p.vector.extent // p.tile.width)
    return math.prod(d.extent for d in p.batch) * math.prod(rows) * columns


def _fits(p: Plan, itemsize: int, machine: Machine) -> bool:
    """Whether results stay in the first cache until they are whole, and operands in the second."""
    steps, rows = math.prod(d.extent for d in p.close), math.prod(p.tile.rows)
    depth = math.prod(d.extent for d in p.reduction)
    made = steps * rows * p.tile.width * itemsize
    read = steps * depth * (rows + p.tile.width) * itemsize
    return CACHE_SHARE * made <= machine.l1 and CACHE_SHARE * read <= machine.l2
