"""Attention as one kernel: blocks of rows of the scores stay in the cache until they are used.

For each block of rows: its scores (a tiled product and the map behind it), the softmax of each row,
and the product with the values, tiled as well. The scores as a whole never exist in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Dim
from tilewright.schedule import Schedule
from tilewright.schedule.sketch.choices import Choices
from tilewright.schedule.sketch.classify import Kind
from tilewright.schedule.sketch.context import Context, Machine
from tilewright.schedule.sketch.nest import register_vectors, spread
from tilewright.schedule.sketch.roles import Plan, plan
from tilewright.schedule.sketch.rows import in_rows, place
from tilewright.schedule.sketch.sharing import PRODUCTS
from tilewright.schedule.sketch.tiled import (
    pack_columns,
    reduce_in_registers,
    results,
)
from tilewright.schedule.sketch.tiles import Tile, choose_tile

CACHE_SHARE = 4  # a block's scores and probabilities take at most this part of the L2 cache

BLOCKS_PER_CORE = 2  # at least, where there are rows enough
BLOCKS = (8, 16, 32, 64, 128, 256)  # rows of a block that may be tried


@dataclass(frozen=True, slots=True)
class _Product:
    """One of the two products: name, plan, accumulators, the loops that use them by dimension."""

    name: str
    plan: Plan
    target: str
    loops: dict[Dim, str]


def attention(s: Schedule, kind: Kind, at: Context, choose: Choices) -> Schedule:
    """See the module's docstring.

    parameters: `<output>.rows`, rows of a block; per product those of `tiled.plan`, its tile again
    as `<product>.block_tile`, and packing; of the rows those of `rows.in_rows`.
    """
    assert kind.parts is not None
    good = block_rows(kind, at.machine)
    if not good:
        raise ScheduleError(
            "a block of rows of scores does not fit the cache", where=f"kernel {s.kernel.name}"
        )
    first, middle, second = kind.parts
    scores, output = _product(s, first, at, choose), _product(s, second, at, choose)
    rows = output.plan.rows[-1].extent
    blocks = sorted({good, *(n for n in BLOCKS if n <= rows)})
    block = choose(f"{output.name}.rows", blocks, good)
    batch = [output.loops[d] for d in (*output.plan.batch, *output.plan.rows[:-1])]
    column = output.loops[output.plan.vector]
    anchor, row = s.split(output.loops[output.plan.rows[-1]], block, "overlap")
    s.reorder(*batch, anchor, row, column)
    _into(s, output.target, anchor)
    probabilities = middle.computations[-1].outputs[0].tensor.name
    _into(s, probabilities, anchor)
    in_rows(s, middle.computations, at, choose, near=True)
    before = kind.computations.index(middle.computations[0])
    for c in reversed(kind.computations[:before]):
        _into(s, c.outputs[0].tensor.name, anchor)
    outer = [*batch, anchor]
    nest = scores.loops[scores.plan.rows[-1]], scores.loops[scores.plan.vector]
    for p, loops in ((scores, nest), (output, (row, column))):
        shape = [min(block, rows)], p.plan.vector.extent, p.plan.tile.lanes, at.machine.registers
        tile = choose_tile(choose, f"{p.name}.block_tile", *shape)
        _contract(s, p, loops, tile, outer, at, choose)
    work = 2 * math.prod(d.extent for d in first.reduction.dims) if first.reduction else 0
    if at.threads(choose, output.name, work >= PRODUCTS):
        spread(s, outer)
    return s


def block_rows(kind: Kind, machine: Machine) -> int:
    """Rows of a block: few stick out, and their scores stay in the cache; 0 where none fit.

    There is none either where the products have no rows: they are bound by memory.
    """
    assert kind.parts is not None
    scores, output = (plan(kind.parts[n], Context(machine), Choices()) for n in (0, 2))
    if not scores.rows or not output.rows:
        return 0
    rows, step = output.rows[-1].extent, output.tile.rows[-1]
    row_bytes = 2 * scores.vector.extent * kind.computations[0].outputs[0].tensor.dtype.itemsize
    most = machine.l2 // CACHE_SHARE // row_bytes
    batch = math.prod(d.extent for d in (*output.batch, *output.rows[:-1]))
    most = min(most, max(step, rows * batch // (BLOCKS_PER_CORE * machine.cores)))
    if rows <= most:
        return rows
    fitting = range(step, most + 1, step)
    return max(fitting, key=lambda n: (-math.ceil(rows / n) * n, n), default=0)


def _product(s: Schedule, kind: Kind, at: Context, choose: Choices) -> _Product:
    assert kind.reduction is not None
    target, loops = results(s, kind)
    return _Product(kind.reduction.name, plan(kind, at, choose), target, loops)


def _into(s: Schedule, buffer: str, anchor: str) -> None:
    s.compute_at(buffer, anchor)
    place(s, buffer)


def _contract(
    s: Schedule,
    p: _Product,
    nest: tuple[str, str],
    tile: Tile,
    outer: Sequence[str],
    at: Context,
    choose: Choices,
) -> None:
    """A block's product in register tiles: a panel of columns stays while the rows go by."""
    (row_o, row), (column_o, column) = (
        s.split(loop, factor, "overlap")
        for loop, factor in zip(nest, (tile.rows[-1], tile.width), strict=True)
    )
    s.reorder(column_o, row_o, row, column)
    s.compute_at(p.target, row_o, scope="register")
    loops = {d: f"{p.name}.{d.var.name}" for d in (*p.plan.rows, p.plan.vector, *p.plan.reduction)}
    reduce_in_registers(s, p.plan, p.target, loops)
    s.unroll(row)
    register_vectors(s, column, tile.lanes)
    pack_columns(s, p.plan, [*outer, column_o, row_o], loops, at, choose)
