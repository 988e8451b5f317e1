"""Attention over blocks of keys as one kernel, whatever the number of keys.

For each block of rows and each block of keys: the scores, the softmax of each row, and the product
with the values, as in `attention`; then the result is merged into the running mean over blocks of
keys. Neither the scores nor the blocks' results ever exist in memory as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer, Load, Var
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    divisors,
    existing,
    extents,
    place,
    register_vectors,
    vectorize_inner,
)
from tilewright.schedule.space.patterns import (
    KernelPattern,
    free_dims,
    reduction_dims,
)
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.attention import (
    BLOCKS,
    AttentionProduct,
    contract,
    few_queries,
    into,
    product,
    summed,
    work,
)
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.key_dots import key_dots
from tilewright.targets.cpu.sketches.roles import TilePlan, plan
from tilewright.targets.cpu.sketches.rows import in_rows
from tilewright.targets.cpu.sketches.tiled_reduction import convert_made, results


def streaming_attention(
    s: Schedule,
    pattern: KernelPattern,
    at: Context,
    choose: Choices,
) -> Schedule:
    """See the module's docstring.

    parameters: those of `attention`; `<online>.parts`, sets of blocks of keys that threads have.
    """
    assert pattern.parts is not None
    good = streamed_rows(pattern, at.costs)
    if not good:
        raise ScheduleError(
            "a block of scores does not fit the cache", where=f"kernel {s.kernel.name}"
        )
    first, _, second = pattern.parts
    scores = product(s, first, at, choose)
    tiles, dots = summed(second, at, choose)
    name = second.computations[0].name
    outer, rows, column = _around(s, pattern, tiles, good, choose)
    worth = at.costs.worth_sharing(work(first, at.costs))
    shared = at.threads(choose, name, worth)
    part, key_block = _online(s, pattern, outer, shared, at, choose)
    if dots is None:
        weights = pattern.parts[1].computations[-1].outputs[0].tensor.name
        convert_made(s, weights, choose)
    into(s, second.computations[0].outputs[0].tensor.name, key_block, at.costs.stack)
    output = AttentionProduct(second.computations[0], *results(s, second), tiles, dots)
    _rows(s, pattern, key_block, at, choose)
    inside = [*outer, *part, key_block]
    if few_queries(first, at.costs):
        key_dots(s, first, scores, choose)
    else:
        _tiles(s, scores, rows, inside, at, choose)
    _tiles(s, output, rows, inside, at, choose)
    lanes = at.machine.lanes(pattern.computations[-2].outputs[0].tensor.dtype)
    _vectors(s, column, lanes)
    _skip_hidden(s, key_block)
    if shared:
        at.share(s, part or outer, choose, name)
    return s


def _around(
    s: Schedule,
    pattern: KernelPattern,
    tiles: TilePlan,
    good: int,
    choose: Choices,
) -> tuple[list[str], int, str]:
    """The loops of the result: those around a block of rows, the rows of one, the columns."""
    assert pattern.parts is not None
    nest = _result_loops(pattern)
    column = nest.pop(tiles.vector)
    if not tiles.rows:
        outer = [*nest.values()]
        s.reorder(*outer, column)
        return outer, 1, column
    count = tiles.rows[-1].extent
    row_loop = nest.pop(tiles.rows[-1])
    blocks = sorted({good, *(n for n in BLOCKS if n <= count)})
    name = pattern.parts[2].computations[0].name
    block = choose(f"{name}.rows", blocks, good)
    anchor, row = s.split(row_loop, block, "overlap")
    outer = [*nest.values(), anchor]
    s.reorder(*outer, row, column)
    return outer, min(block, count), column


def _tiles(
    s: Schedule,
    p: AttentionProduct,
    rows: int,
    inside: Sequence[str],
    at: Context,
    choose: Choices,
) -> None:
    """A product of a block in register tiles; rows: of the block."""
    loops = [p.loops[d] for d in (*p.plan.rows[-1:], p.plan.vector)]
    sizes = [rows] if p.plan.rows else []
    contract(s, p, loops, sizes, inside, at, choose)


def _skip_hidden(s: Schedule, key_block: str) -> None:
    """Blocks of keys that a mask hides from all rows are not read, where that is proven."""
    with suppress(ScheduleError):  # without a mask by position, all blocks count
        s.skip(key_block)


def streamed_rows(
    pattern: KernelPattern,
    costs: CostModel,
) -> int:
    """Rows of a block whose scores of a block of keys stay in the cache; 0 where none do.

    There is none either where the products have no rows, where blocks have few keys, and where the
    second product's columns are so few that its vectors go along the blocks. Blocks of few queries,
    which are bound by memory, have all of them, and keys up to `streamed_keys`.
    """
    assert pattern.parts is not None
    machine = costs.machine
    at = Context(machine)
    scores = plan(pattern.parts[0], at, Choices())
    output = plan(pattern.parts[2], at, Choices())
    keys = scores.vector.extent
    if keys < costs.few_keys:
        return 0
    if not {output.vector, *output.rows[-1:]} <= _result_loops(pattern).keys():
        return 0
    if few_queries(pattern.parts[0], costs):
        return _few_rows(pattern, output, keys, costs)
    if not scores.rows or not output.rows:
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


def _few_rows(
    pattern: KernelPattern,
    output: TilePlan,
    keys: int,
    costs: CostModel,
) -> int:
    """All rows of few queries; 0 for large blocks of keys, and where no loop is around a block."""
    if keys > costs.streamed_keys:
        return 0
    if output.rows:
        return output.rows[-1].extent
    around = len(_result_loops(pattern)) > 1
    return int(around)


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
    outer: Sequence[str],
    shared: bool,
    at: Context,
    choose: Choices,
) -> tuple[list[str], str]:
    """The mean over blocks, for each block of rows: one block of keys after another.

    outer: the loops around a block of rows. shared: whether threads have work. The loop over sets
    of blocks of keys, if there are several, and the loop over the blocks of keys.
    """
    online = pattern.computations[-2]
    block = _loop(online, reduction_dims(online)[0])
    mean = online.outputs[-1].tensor.name
    into(s, mean, outer[-1], at.costs.stack)
    for o in online.outputs:
        place(s, o.tensor.name, at.costs.stack)
    inner = [_loop(online, d) for d in free_dims(online)]
    starts = s.decompose_reduction(mean, inner[0])
    s.reorder(block, *inner)
    lanes = at.machine.lanes(online.outputs[0].tensor.dtype)
    part, block = _in_parts(s, online, outer, shared, at, choose)
    for loop in (starts[-1], inner[-1]):
        _vectors(s, loop, lanes)
    return part, block


def _in_parts(
    s: Schedule,
    online: Computation,
    outer: Sequence[str],
    shared: bool,
    at: Context,
    choose: Choices,
) -> tuple[list[str], str]:
    """Blocks of keys dealt out in turns, each set with its own mean: where there are fewer
    blocks of rows than cores. They go by in turns since those after the last valid key are none.

    The loop over the sets, if there are several, and the loop over the blocks of one.
    """
    block = _loop(online, reduction_dims(online)[0])
    known = extents(s.kernel)
    possible = [n for n in divisors(at.machine.cores) if known[block] % n == 0]
    around = math.prod(known.get(n, 1) for n in outer)
    good = possible[-1] if shared and around < at.machine.cores else 1
    if len(possible) < 2:
        return [], block
    parts = choose(f"{online.name}.parts", possible, good)
    if parts == 1:
        return [], block
    blocks, part = s.split(block, parts)
    before = set(s.loops)
    s.rfactor(part, "global")
    s.reorder(part, blocks)
    lanes = at.machine.lanes(online.outputs[0].tensor.dtype)
    made = [n for n in s.loops if n not in before]
    half = len(made) // 2  # to clear the means of the sets, and to combine them
    for loop in (made[half - 1], made[-1]):
        _vectors(s, loop, lanes)
    return [part], blocks


def _vectors(s: Schedule, loop: str, lanes: int) -> None:
    """A loop over columns in vectors, the last of them in part where they are not a multiple."""
    extent = extents(s.kernel).get(loop, 1)
    if extent > lanes and extent % lanes:
        vectorize_inner(s, loop, lanes, tail="guard")
    else:
        register_vectors(s, loop, lanes)


def _loop(c: Computation, d: Dim) -> str:
    return f"{c.name}.{d.var.name}"


def _rows(
    s: Schedule,
    pattern: KernelPattern,
    key_block: str,
    at: Context,
    choose: Choices,
) -> None:
    """The scores of a block of keys, the softmax of each row, and the statistics kept from it."""
    assert pattern.parts is not None
    kept = pattern.computations[-3]
    computations = pattern.parts[1].computations
    weights = computations[-1]
    for c in (kept, weights):
        name = c.outputs[0].tensor.name
        into(s, name, key_block, at.costs.stack)
    _merge_rows(s, weights, kept)
    first = pattern.computations.index(computations[0])
    before = pattern.computations[:first]
    if existing(s, [f"{weights.name}.{d.var.name}" for d in weights.dims[:-1]]):
        in_rows(s, computations, at, choose, near=True)
    else:  # one row has no loop for the others to go to
        before = pattern.computations[: first + len(computations) - 1]
    for c in reversed(before):
        name = c.outputs[0].tensor.name
        into(s, name, key_block, at.costs.stack)
    if len(before) > first:
        in_rows(s, computations, at, choose, near=True)


def _merge_rows(
    s: Schedule,
    weights: Computation,
    kept: Computation,
) -> None:
    """What is kept of each row is so in the loops of the row."""
    for d, other in zip(weights.dims, kept.dims, strict=False):
        loop = f"{weights.name}.{d.var.name}"
        s.merge(loop, f"{kept.name}.{other.var.name}")
