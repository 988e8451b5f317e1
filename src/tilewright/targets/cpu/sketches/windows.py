"""Windows reduced along one axis after another (`compute/separable_windows.py`): pooling.

Vectors along another dimension (channels): a tile of neighboring results reads each element that
its windows cover once, and keeps it in registers. Vectors along the windows themselves: a row of
the first reduction's results stays in the first cache.
"""

from __future__ import annotations

import math

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.compute.separable_windows import applications
from tilewright.expr.nodes import Select
from tilewright.ir.node import postorder
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import existing, extents, register_vectors
from tilewright.schedule.space.patterns import (
    KernelPattern,
    address,
    free_dims,
    reduction_dims,
    stride,
    uses,
)
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.register_tile_model import Tile
from tilewright.targets.cpu.sketches.roles import TilePlan
from tilewright.targets.cpu.sketches.tiled_reduction import reduce_in_registers, results

BLOCKS = (2, 4, 8, 16, 32, 64, 128)  # rows of a block that may be tried
HEIGHTS = (2, 3, 4, 6, 8)  # rows in registers that may be


def combined(pattern: KernelPattern) -> float:
    """How often the operator is applied in all."""
    first = pattern.computations[0]
    last = pattern.reduction
    assert last is not None
    return float(applications(first) + applications(last))


def windows_are_profitable(pattern: KernelPattern, costs: CostModel) -> bool:
    """Whether that is faster than all windows at once.

    Not for little work saved along rows whose neighboring elements start neighboring windows:
    vectors as long as a cache line would be stored and read again off its boundaries.
    """
    first = pattern.computations[0]
    last = pattern.reduction
    assert last is not None
    load = last.accesses[0]
    place = _place(last)
    if pattern.vector is not place:
        return True
    if _over(first) is None:
        return False
    if stride(address(load), place.var) != 1:
        return True
    dtype = load.dtype
    taps = math.prod(reduction_dims(c)[0].extent for c in (first, last))
    saved = taps - 1 - combined(pattern) / _points(last)
    m = costs.machine
    return m.lanes(dtype) * dtype.itemsize < m.line or saved >= costs.reread


def windows(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: `<reduction>.tile`, results of a tile along the windows and its vectors; or
    `<reduction>.block`, rows of the first reduction's results at a time, and `<reduction>.height`,
    rows in registers; `<reduction>.parallel`, `<reduction>.shared`.
    """
    first = pattern.computations[0]
    last = pattern.reduction
    assert last is not None
    along = pattern.vector is _place(last)
    if along:
        outer = _by_rows(s, pattern, at, choose)
    else:
        outer = _by_tiles(s, pattern, at, choose)
    work = _points(first) * reduction_dims(first)[0].extent
    taken = work * at.costs.point_ns + at.costs.moving(s.kernel.params, at.constants)
    if at.threads(choose, last.name, at.costs.worth_sharing(taken)):
        at.share(s, outer, choose, last.name)
    return s


def _by_tiles(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> list[str]:
    """Tiles of results in registers; the loops around them."""
    first = pattern.computations[0]
    last = pattern.reduction
    v = pattern.vector
    assert last is not None and v is not None
    place, (step,), (lead,) = _place(last), reduction_dims(last), reduction_dims(first)
    lanes = min(at.machine.lanes(first.outputs[0].tensor.dtype), v.extent)
    tile = Tile(*_tile(choose, pattern, lanes, at.costs), lanes)
    target, names = results(s, pattern)
    rest = [d for d in free_dims(last) if d not in (place, v)]
    outer = [names[d] for d in rest]
    inner = []
    for d, size in ((place, tile.rows[0]), (v, tile.width)):
        if size < d.extent:
            block, part = s.split(names[d], size, "overlap")
            outer.append(block)
            inner.append(part)
        else:
            inner.append(names[d])
    s.reorder(*outer, *inner)
    made = first.outputs[0].tensor
    for buffer in (target, made.name):
        if outer:
            s.compute_at(buffer, outer[-1], scope="register")
        else:
            s.set_scope(buffer, "register")
    for c, rows, by in ((first, _covered(first, last), lead), (last, place, step)):
        dims = (*rest, rows, v, by)
        loops = {d: f"{c.name}.{d.var.name}" for d in dims}
        window = by if by.extent <= at.costs.taps else None
        p = TilePlan(
            batch=tuple(rest),
            rows=(rows,),
            vector=v,
            reduction=(by,),
            columns=(),
            tile=tile,
            window=window,
        )
        reduce_in_registers(s, p, made.name if c is first else target, loops)
    for name in existing(s, inner[:-1]):
        s.unroll(name)
    register_vectors(s, inner[-1], lanes)
    return outer


def _by_rows(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> list[str]:
    """Keep rows of the first reduction's results in the cache; returns the loops around them."""
    first = pattern.computations[0]
    last = pattern.reduction
    assert last is not None
    place, (step,) = _place(last), reduction_dims(last)
    lanes = min(at.machine.lanes(first.outputs[0].tensor.dtype), place.extent)
    target, names = results(s, pattern)
    rest = [d for d in free_dims(last) if d is not place]
    over = _over(first)
    if over is None:
        raise ScheduleError(
            "windows: one row of results", where=f"kernel {s.kernel.name}"
        )
    outer = [names[d] for d in rest]
    s.reorder(*outer, names[place])
    block, column = s.split(names[place], lanes, "overlap")
    s.compute_at(target, block, scope="register")
    rows = first.outputs[0].tensor
    size = rows.dtype.itemsize * _covered(first, last).extent
    count = rest[-1].extent
    parts = -(-count * size * at.costs.half // at.machine.l1)
    possible = [n for n in BLOCKS if n < count] + [count]
    height = choose(f"{last.name}.block", possible, -(-count // parts))
    if height < count:
        outer[-1], _ = s.split(outer[-1], height, "overlap")
    else:
        outer.pop()
    if outer:
        s.compute_at(rows.name, outer[-1], scope="stack")
    else:
        s.set_scope(rows.name, "stack")
    loops = {d: f"{last.name}.{d.var.name}" for d in (*rest, place, step)}
    window = step if step.extent <= at.costs.taps else None
    p = TilePlan(
        batch=tuple(rest),
        rows=(),
        vector=place,
        reduction=(step,),
        columns=(),
        tile=Tile((), 1, lanes),
        window=window,
    )
    reduce_in_registers(s, p, target, loops)
    s.vectorize(column)
    now = extents(s.kernel)[f"{first.name}.{over.var.name}"]
    good = min(at.costs.window_rows, now)
    heights = [n for n in HEIGHTS if n <= now] or [good]
    tile_rows = choose(f"{last.name}.height", heights, good)
    _first_rows(s, first, over, _covered(first, last), tile_rows, at.costs)
    return outer


def _first_rows(
    s: Schedule,
    first: Computation,
    down: Dim,
    along: Dim,
    height: int,
    costs: CostModel,
) -> None:
    """The first reduction in vectors along its rows, some rows at a time, which share what they
    read; those that reach into the padding apart."""
    made, (lead,) = first.outputs[0], reduction_dims(first)
    row, over = (f"{first.name}.{d.var.name}" for d in (along, down))
    now = extents(s.kernel)
    lanes = min(costs.machine.lanes(made.tensor.dtype), now[row])
    block, lane = s.split(row, lanes, "overlap")
    tiles, rows = s.split(over, height, "overlap")
    s.reorder(tiles, block, rows, lane)
    parts: tuple[str, ...] = (block,)
    if _is_guarded(first, along):
        ends = sorted({1, extents(s.kernel)[block] - 1} - {0, extents(s.kernel)[block]})
        if ends:
            parts = s.partition_loop(block, *ends)
    for part in parts:
        of = part.removeprefix(block)
        acc = s.cache_write(made.tensor.name, part)
        tile = f"{rows}{of}", f"{lane}{of}"
        starts = s.decompose_reduction(acc, tile[0])
        step = f"{first.name}.{lead.var.name}{of}"
        s.reorder(step, *tile)
        if lead.extent <= costs.taps:
            s.unroll(step)
        stores = [f"{acc}.w{made.index.index(d.var)}" for d in (down, along)]
        for outer, inner in (starts[-2:], tile, stores):
            s.unroll(outer)
            s.vectorize(inner)


def _over(first: Computation) -> Dim | None:
    """The dimension of the results along which the windows are that are reduced first."""
    (step,) = reduction_dims(first)
    index = next(i for i in first.accesses[0].index if uses(i, step.var))
    return next((d for d in free_dims(first) if uses(index, d.var)), None)


def _is_guarded(c: Computation, d: Dim) -> bool:
    nodes = (n for n in postorder(c.outputs[0].value) if isinstance(n, Select))
    return any(uses(n.condition, d.var) for n in nodes)


def _points(c: Computation) -> int:
    return math.prod(d.extent for d in c.dims if d.combine == CC)


def _place(last: Computation) -> Dim:
    """The dimension of the results along which the windows are that are reduced last."""
    (load,), (step,) = last.accesses, reduction_dims(last)
    index = next(i for i in load.index if uses(i, step.var))
    return next(d for d in free_dims(last) if uses(index, d.var))


def _covered(first: Computation, last: Computation) -> Dim:
    """The dimension of the first reduction's results that the windows reduced last cover."""
    return next(d for d in free_dims(first) if d not in last.dims)


def _tile(
    choose: Choices, pattern: KernelPattern, lanes: int, costs: CostModel
) -> tuple[tuple[int], int]:
    """Results along the windows and vectors of a tile: the fewest operations and loads for each."""
    first = pattern.computations[0]
    last = pattern.reduction
    assert last is not None and pattern.vector is not None
    place, (step,), (lead,) = _place(last), reduction_dims(last), reduction_dims(first)
    moved = stride(address(last.accesses[0]), place.var)
    by = stride(address(last.accesses[0]), step.var)
    assert moved is not None and by
    room = costs.machine.registers - costs.window_registers

    def covered(size: int) -> int:
        return (size - 1) * (moved // by) + step.extent

    columns = pattern.vector.extent

    def sizes(results: int, vectors: int) -> list[tuple[int, int]]:
        return [
            (n, v)
            for v in range(1, min(vectors, columns // lanes) + 1)
            for n in range(1, min(results, place.extent) + 1)
            if n == v == 1 or (n + covered(n)) * v <= room
        ]

    def cost(size: tuple[int, int]) -> float:
        n, v = size
        work = covered(n) * (2 * lead.extent - 1) + n * (step.extent - 1)
        tiles = math.ceil(place.extent / n) * math.ceil(columns / (v * lanes))
        return tiles * (v * work + costs.window_load * covered(n) + costs.window_around)

    good = min(sizes(costs.window_results, costs.window_vectors), key=cost)
    size, vectors = choose(f"{last.name}.tile", sizes(room, room), good)
    return (size,), vectors
