"""Attention as one kernel: blocks of rows of the scores stay in the cache until they are used.

For each block of rows: its scores (a tiled product and the map after it), the softmax of each row,
and the product with the values, tiled as well. The scores as a whole never exist in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import place, register_vectors, written_out
from tilewright.schedule.space.patterns import KernelPattern, streams_rows
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.dot_products import (
    Dot,
    by_dots,
    dot,
    reads_words,
)
from tilewright.targets.cpu.sketches.register_tile_model import (
    NO_ROW_DATA,
    choose_tile,
)
from tilewright.targets.cpu.sketches.roles import TilePlan, plan
from tilewright.targets.cpu.sketches.rows import in_rows, streams
from tilewright.targets.cpu.sketches.tiled_reduction import (
    convert_made,
    convert_rows,
    pack_columns,
    reduce_in_registers,
    results,
)

BLOCKS = (8, 16, 32, 64, 128, 256)  # rows of a block that may be tried


@dataclass(frozen=True, slots=True)
class AttentionProduct:
    """One of the two products: its reduction, its accumulators, the loops that use them, its plan.

    loops: by dimension. dot: the plan to sum it by dot products, if it is."""

    reduction: Computation
    target: str
    loops: dict[Dim, str]
    plan: TilePlan
    dot: Dot | None

    @property
    def name(self) -> str:
        """Of the reduction."""
        return self.reduction.name


def attention(
    s: Schedule,
    pattern: KernelPattern,
    at: Context,
    choose: Choices,
) -> Schedule:
    """See the module's docstring.

    parameters: `<output>.rows`, rows of a block; per product those of `tiled.plan`, its tile again
    as `<product>.block_tile`, `<product>.panels`, whether all rows of a block are processed per
    panel of columns, `<product>.unroll`, and packing; for the rows those of `rows.in_rows`.
    """
    assert pattern.parts is not None
    good = block_rows(pattern, at.costs)
    if not good:
        raise ScheduleError(
            "a block of rows of scores does not fit the cache",
            where=f"kernel {s.kernel.name}",
        )
    first, middle, second = pattern.parts
    scores = product(s, first, at, choose)
    output = product(s, second, at, choose)
    rows = output.plan.rows[-1].extent
    blocks = sorted({good, *(n for n in BLOCKS if n <= rows)})
    block = choose(f"{output.name}.rows", blocks, good)
    batch = [output.loops[d] for d in (*output.plan.batch, *output.plan.rows[:-1])]
    column = output.loops[output.plan.vector]
    anchor, row = s.split(output.loops[output.plan.rows[-1]], block, "overlap")
    s.reorder(*batch, anchor, row, column)
    into(s, output.target, anchor, at.costs.stack)
    probabilities = middle.computations[-1].outputs[0].tensor.name
    if output.dot is None:
        convert_made(s, probabilities, choose)
    into(s, probabilities, anchor, at.costs.stack)
    in_rows(s, middle.computations, at, choose, near=True)
    before = pattern.computations.index(middle.computations[0])
    for c in reversed(pattern.computations[:before]):
        into(s, c.outputs[0].tensor.name, anchor, at.costs.stack)
    outer = [*batch, anchor]
    nest = scores.loops[scores.plan.rows[-1]], scores.loops[scores.plan.vector]
    for p, loops in ((scores, nest), (output, (row, column))):
        contract(s, p, loops, [min(block, rows)], outer, at, choose)
    if at.threads(choose, output.name, at.costs.worth_sharing(work(first, at.costs))):
        at.share(s, outer, choose, output.name)
    return s


def block_rows(
    pattern: KernelPattern,
    costs: CostModel,
) -> int:
    """Rows of a block: few stick out, and their scores stay in the cache; 0 where none fit.

    There is none either where the products have no rows, or few and many keys: they are bound by
    memory. Blocks of keys then leave out what a mask hides.
    """
    assert pattern.parts is not None
    machine = costs.machine
    if streams(pattern.parts[0], Context(machine)) or _streams(pattern.parts[0], costs):
        return 0
    scores, output = (
        plan(pattern.parts[n], Context(machine), Choices()) for n in (0, 2)
    )
    if not scores.rows or not output.rows:
        return 0
    rows = output.rows[-1].extent
    step = output.tile.rows[-1]
    row_bytes = (
        2
        * scores.vector.extent
        * pattern.computations[0].outputs[0].tensor.dtype.itemsize
    )
    most = machine.l2 // costs.quarter // row_bytes
    batch = math.prod(d.extent for d in (*output.batch, *output.rows[:-1]))
    most = min(most, max(step, rows * batch // (costs.blocks * machine.cores)))
    if rows <= most:
        return rows
    fitting = range(step, most + 1, step)
    return max(fitting, key=lambda n: (-math.ceil(rows / n) * n, n), default=0)


def few_queries(scores: KernelPattern, costs: CostModel) -> bool:
    """Whether so few queries read each key, along its row, that no copy of the keys pays.

    The last block of keys may have fewer, though at least one."""
    return streams_rows(scores, (), costs.few_queries, again=2.0)


def _streams(scores: KernelPattern, costs: CostModel) -> bool:
    """Whether blocks of keys for few queries are better: the keys make several of a good size."""
    assert scores.vector is not None
    keys = scores.vector.extent
    sizes = range(costs.few_keys, min(costs.streamed_keys, keys - 1) + 1)
    return few_queries(scores, costs) and any(keys % n == 0 for n in sizes)


def work(
    scores: KernelPattern,
    costs: CostModel,
) -> float:
    """Nanoseconds of both products on one core."""
    assert scores.reduction is not None
    return 2 * math.prod(d.extent for d in scores.reduction.dims) * costs.product_ns


def product(
    s: Schedule,
    pattern: KernelPattern,
    at: Context,
    choose: Choices,
) -> AttentionProduct:
    """A product whose results have a separate nest from its accumulators."""
    assert pattern.reduction is not None
    planned = summed(pattern, at, choose)
    return AttentionProduct(pattern.reduction, *results(s, pattern), *planned)


def summed(
    pattern: KernelPattern, at: Context, choose: Choices
) -> tuple[TilePlan, Dot | None]:
    """How a product is summed: its tiles, and the plan of its dot products, if it has any: in
    vectors, of words that are neighbors in memory already.

    parameters: those of `dot` and of `plan`.
    """
    d = dot(pattern, at, choose, tiles=False)
    if d is not None and not (d.vector is pattern.vector and reads_words(d)):
        d = None
    return plan(pattern, at, choose, dots=d is not None), d


def into(
    s: Schedule,
    buffer: str,
    anchor: str,
    stack: int,
) -> None:
    """Compute a buffer at a loop, and place the remaining nest."""
    s.compute_at(buffer, anchor)
    place(s, buffer, stack)


def contract(
    s: Schedule,
    p: AttentionProduct,
    nest: Sequence[str],
    block: Sequence[int],
    outer: Sequence[str],
    at: Context,
    choose: Choices,
) -> None:
    """A block's product in register tiles: by default a panel of columns stays while the rows go
    by.

    nest: the loops over rows, if there are several, and over columns. block: rows of one, likewise.

    parameters: `<product>.block_tile`, `<product>.panels`, those of packing; see `attention`.
    """
    shape = block, p.plan.vector.extent, p.plan.tile.lanes, at.costs
    data = replace(NO_ROW_DATA, dots=p.dot is not None)
    tile = choose_tile(choose, f"{p.name}.block_tile", *shape, data)
    sizes = (*tile.rows[-1:], tile.width)
    split = [s.split(n, size, "overlap") for n, size in zip(nest, sizes, strict=True)]
    around = [outer for outer, _ in split]
    *rows, column = [inner for _, inner in split]
    panels = bool(rows) and choose(f"{p.name}.panels", (True, False), True)
    if panels:
        around.reverse()
    s.reorder(*around, *rows, column)
    s.compute_at(p.target, around[-1], scope="register")
    loops = {
        d: f"{p.name}.{d.var.name}"
        for d in (*p.plan.rows, p.plan.vector, *p.plan.reduction)
    }
    for row in rows:
        s.unroll(row)
    register_vectors(s, column, tile.lanes)
    if p.dot is not None:
        column = p.dot.column.buffer.name
        by_dots(s, p.dot, p.plan, p.target, column, [*outer, *around], loops, at)
        return
    reduce_in_registers(s, p.plan, p.target, loops)
    pack_columns(s, p.plan, [*outer, *around], loops, at, choose)
    convert_rows(s, p.reduction, p.plan, [*outer, *around], loops, at, choose)
    sums = [loops[d] for d in p.plan.reduction]
    written_out(s, sums, choose, p.name)
