"""Attention over blocks of keys as one kernel, whatever the number of keys.

For each block of rows and each block of keys: the scores, the softmax of each row, and the product
with the values, as `attention` does them; then the mean over the blocks of keys that came by takes
the new one in. Neither scores nor results of blocks exist in memory as a whole.
"""

from __future__ import annotations

import math

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer, Load
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import register_vectors
from tilewright.schedule.space.patterns import (
    KernelPattern,
    free_dims,
    reduction_dims,
)
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.attention import (
    BLOCKS,
    Product,
    contract,
    into,
    product,
    work,
)
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.register_tile_model import choose_tile
from tilewright.targets.cpu.sketches.roles import plan
from tilewright.targets.cpu.sketches.rows import in_rows
from tilewright.targets.cpu.sketches.tiled_reduction import results


def streaming_attention(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: those of `attention`.
    """
    assert pattern.parts is not None
    good = streamed_rows(pattern, at.costs)
    if not good:
        raise ScheduleError(
            "a block of scores does not fit the cache", where=f"kernel {s.kernel.name}"
        )
    first, middle, second = pattern.parts
    kept, online, _ = pattern.computations[-3:]
    scores = product(s, first, at, choose)
    tiles = plan(second, at, choose)
    nest = _result_loops(pattern)
    row_dim, column_dim = tiles.rows[-1], tiles.vector
    name = second.computations[0].name
    rows = row_dim.extent
    blocks = sorted({good, *(n for n in BLOCKS if n <= rows)})
    block = choose(f"{name}.rows", blocks, good)
    batch = [loop for d, loop in nest.items() if d not in (row_dim, column_dim)]
    anchor, row = s.split(nest[row_dim], block, "overlap")
    s.reorder(*batch, anchor, row, nest[column_dim])
    key_block = _online(s, pattern, anchor, at)
    into(s, second.computations[0].outputs[0].tensor.name, key_block, at.costs.stack)
    output = Product(name, tiles, *results(s, second))
    for c in (kept, middle.computations[-1]):
        into(s, c.outputs[0].tensor.name, key_block, at.costs.stack)
    _merge_rows(s, middle.computations[-1], kept)
    in_rows(s, middle.computations, at, choose, near=True)
    before = pattern.computations.index(middle.computations[0])
    for c in reversed(pattern.computations[:before]):
        into(s, c.outputs[0].tensor.name, key_block, at.costs.stack)
    outer = [*batch, anchor, key_block]
    pairs = (
        (scores, (scores.loops[scores.plan.rows[-1]], scores.loops[scores.plan.vector])),
        (output, (output.loops[row_dim], output.loops[column_dim])),
    )
    for p, loops in pairs:
        shape = [min(block, rows)], p.plan.vector.extent, p.plan.tile.lanes, at.costs
        tile = choose_tile(choose, f"{p.name}.block_tile", *shape)
        contract(s, p, loops, tile, outer, at, choose)
    register_vectors(s, nest[column_dim], at.machine.lanes(online.outputs[0].tensor.dtype))
    if at.threads(choose, output.name, at.costs.worth_sharing(work(first, at.costs))):
        at.share(s, [*batch, anchor], choose, output.name)
    return s


def streamed_rows(pattern: KernelPattern, costs: CostModel) -> int:
    """Rows of a block whose scores of a block of keys stay in the cache; 0 where none do.

    There is none either where the products have no rows: they are bound by memory.
    """
    assert pattern.parts is not None
    machine = costs.machine
    scores, output = (
        plan(pattern.parts[n], Context(machine), Choices()) for n in (0, 2)
    )
    if not scores.rows or not output.rows:
        return 0
    rows = output.rows[-1].extent
    step = output.tile.rows[-1]
    dtype = pattern.computations[0].outputs[0].tensor.dtype
    width = scores.vector.extent + 2 * output.vector.extent
    most = machine.l2 // costs.quarter // (2 * width * dtype.itemsize)
    free = math.prod(d.extent for d in free_dims(pattern.computations[-2]))
    every = free // output.vector.extent
    most = min(most, max(step, every // (costs.blocks * machine.cores)))
    if rows <= most:
        return rows
    fitting = range(step, most + 1, step)
    return max(fitting, key=lambda n: (-math.ceil(rows / n) * n, n), default=0)


def _result_loops(pattern: KernelPattern) -> dict[Dim, str]:
    """The loops of the last map, by the dimensions of the product whose mean it is of."""
    assert pattern.parts is not None
    mean = pattern.parts[2].computations[0]
    _, online, last = pattern.computations[-3:]
    made, whole = mean.outputs[0], online.outputs[-1]
    between = dict(zip(made.index, _read(online, made.tensor).index, strict=True))
    behind = dict(zip(whole.index, _read(last, whole.tensor).index, strict=True))
    found: dict[Dim, str] = {}
    for d in free_dims(mean):
        place = behind.get(between.get(d.var))  # type: ignore[arg-type]
        if place is not None:
            found[d] = f"{last.name}.{place.name}"  # type: ignore[attr-defined]
    return found


def _read(c: Computation, tensor: Buffer) -> Load:
    return next(a for a in c.accesses if a.buffer is tensor)


def _online(s: Schedule, pattern: KernelPattern, anchor: str, at: Context) -> str:
    """The mean over blocks, for each block of rows: one block of keys after another.

    The loop over the blocks of keys.
    """
    online = pattern.computations[-2]
    (along,) = reduction_dims(online)
    block = f"{online.name}.{along.var.name}"
    into(s, online.outputs[-1].tensor.name, anchor, at.costs.stack)
    for o in online.outputs[:-1]:
        s.set_scope(o.tensor.name, "stack")
    inner = [f"{online.name}.{d.var.name}" for d in free_dims(online)]
    starts = s.decompose_reduction(online.outputs[-1].tensor.name, inner[0])
    s.reorder(block, *inner)
    lanes = at.machine.lanes(online.outputs[0].tensor.dtype)
    for loop in (starts[-1], inner[-1]):
        register_vectors(s, loop, lanes)
    return block


def _merge_rows(s: Schedule, weights: Computation, kept: Computation) -> None:
    """What is kept of each row is so in the loops of the row."""
    for d, other in zip(weights.dims, kept.dims, strict=False):
        s.merge(f"{weights.name}.{d.var.name}", f"{kept.name}.{other.var.name}")
