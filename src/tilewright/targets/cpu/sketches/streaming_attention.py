"""Attention over blocks of keys as one kernel, whatever the number of keys.

For each block of rows and each block of keys: the scores, the softmax of each row, and the product
with the values, as `attention` does them; then the mean over the blocks of keys that came by takes
the new one in. Neither scores nor results of blocks exist in memory as a whole.
"""

from __future__ import annotations

import math

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer, Load, Var
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import place, register_vectors
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
from tilewright.targets.cpu.sketches.rows import in_rows, streams
from tilewright.targets.cpu.sketches.tiled_reduction import results


def streaming_attention(
    s: Schedule,
    pattern: KernelPattern,
    at: Context,
    choose: Choices,
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
    first, _, second = pattern.parts
    online = pattern.computations[-2]
    scores = product(s, first, at, choose)
    tiles = plan(second, at, choose)
    nest = _result_loops(pattern)
    row_dim = tiles.rows[-1]
    column_dim = tiles.vector
    name = second.computations[0].name
    rows = row_dim.extent
    possible = {good, *(n for n in BLOCKS if n <= rows)}
    blocks = sorted(possible)
    block = choose(f"{name}.rows", blocks, good)
    batch = [loop for d, loop in nest.items() if d not in (row_dim, column_dim)]
    anchor, row = s.split(nest[row_dim], block, "overlap")
    s.reorder(*batch, anchor, row, nest[column_dim])
    key_block = _online(s, pattern, anchor, at)
    part = second.computations[0].outputs[0].tensor
    into(s, part.name, key_block, at.costs.stack)
    output = Product(name, tiles, *results(s, second))
    _rows(s, pattern, key_block, at, choose)
    outer = [*batch, anchor, key_block]
    for p in (scores, output):
        loops = p.loops[p.plan.rows[-1]], p.loops[p.plan.vector]
        tile = choose_tile(
            choose,
            f"{p.name}.block_tile",
            [min(block, rows)],
            p.plan.vector.extent,
            p.plan.tile.lanes,
            at.costs,
        )
        contract(s, p, loops, tile, outer, at, choose)
    lanes = at.machine.lanes(online.outputs[0].tensor.dtype)
    register_vectors(s, nest[column_dim], lanes)
    if at.threads(choose, output.name, at.costs.worth_sharing(work(first, at.costs))):
        at.share(s, [*batch, anchor], choose, output.name)
    return s


def streamed_rows(
    pattern: KernelPattern,
    costs: CostModel,
) -> int:
    """Rows of a block whose scores of a block of keys stay in the cache; 0 where none do.

    There is none either where the products have no rows, or few and many keys, as they are bound by
    memory, and where blocks have few keys.
    """
    assert pattern.parts is not None
    machine = costs.machine
    if streams(pattern.parts[0], Context(machine)):
        return 0
    at = Context(machine)
    scores = plan(pattern.parts[0], at, Choices())
    output = plan(pattern.parts[2], at, Choices())
    if not scores.rows or not output.rows:
        return 0
    keys = scores.vector.extent
    if keys < costs.few_keys:
        return 0
    rows = output.rows[-1].extent
    step = output.tile.rows[-1]
    dtype = pattern.computations[0].outputs[0].tensor.dtype
    width = keys + 2 * output.vector.extent
    row_bytes = 2 * width * dtype.itemsize
    most = machine.l2 // costs.quarter // row_bytes
    count = math.prod(d.extent for d in free_dims(pattern.computations[-2]))
    every = count // output.vector.extent
    shared = every // (costs.blocks * machine.cores)
    most = min(most, max(step, shared))
    if rows <= most:
        return rows
    fitting = range(step, most + 1, step)
    return max(fitting, key=lambda n: (-math.ceil(rows / n) * n, n), default=0)


def _result_loops(pattern: KernelPattern) -> dict[Dim, str]:
    """The loops of the last map, by the dimensions of the product whose mean it is of."""
    assert pattern.parts is not None
    mean = pattern.parts[2].computations[0]
    _, online, last = pattern.computations[-3:]
    made = mean.outputs[0]
    whole = online.outputs[-1]
    read = _read(online, made.tensor)
    between = dict(zip(made.index, read.index, strict=True))
    read = _read(last, whole.tensor)
    behind = dict(zip(whole.index, read.index, strict=True))
    found: dict[Dim, str] = {}
    for d in free_dims(mean):
        along = between[d.var]
        loop = behind.get(along)  # none along the blocks
        if isinstance(loop, Var):
            found[d] = f"{last.name}.{loop.name}"
    return found


def _read(c: Computation, tensor: Buffer) -> Load:
    return next(a for a in c.accesses if a.buffer is tensor)


def _online(
    s: Schedule,
    pattern: KernelPattern,
    anchor: str,
    at: Context,
) -> str:
    """The mean over blocks, for each block of rows: one block of keys after another.

    The loop over the blocks of keys.
    """
    online = pattern.computations[-2]
    (along,) = reduction_dims(online)
    block = f"{online.name}.{along.var.name}"
    mean = online.outputs[-1].tensor.name
    into(s, mean, anchor, at.costs.stack)
    for o in online.outputs:
        place(s, o.tensor.name, at.costs.stack)
    inner = [f"{online.name}.{d.var.name}" for d in free_dims(online)]
    starts = s.decompose_reduction(mean, inner[0])
    s.reorder(block, *inner)
    lanes = at.machine.lanes(online.outputs[0].tensor.dtype)
    for loop in (starts[-1], inner[-1]):
        register_vectors(s, loop, lanes)
    return block


def _rows(
    s: Schedule,
    pattern: KernelPattern,
    key_block: str,
    at: Context,
    choose: Choices,
) -> None:
    """The scores of a block of keys, the softmax of each row, and what is kept of it."""
    assert pattern.parts is not None
    kept = pattern.computations[-3]
    computations = pattern.parts[1].computations
    weights = computations[-1]
    for c in (kept, weights):
        name = c.outputs[0].tensor.name
        into(s, name, key_block, at.costs.stack)
    _merge_rows(s, weights, kept)
    in_rows(s, computations, at, choose, near=True)
    count = pattern.computations.index(computations[0])
    before = pattern.computations[:count]
    for c in reversed(before):
        name = c.outputs[0].tensor.name
        into(s, name, key_block, at.costs.stack)


def _merge_rows(
    s: Schedule,
    weights: Computation,
    kept: Computation,
) -> None:
    """What is kept of each row is so in the loops of the row."""
    for d, other in zip(weights.dims, kept.dims, strict=False):
        loop = f"{weights.name}.{d.var.name}"
        s.merge(loop, f"{kept.name}.{other.var.name}")
