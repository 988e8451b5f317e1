"""Winograd's convolution as one kernel: blocks of tiles stay in the cache from inputs to results.

For each block of rows of tiles: its inputs are transformed, and for each panel of channels the 16
products (in register tiles) and the transform of their results, with the map behind it. One block
alone is shared by the threads panel by panel. The filters are transformed where they are constants:
by the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation, Dim
from tilewright.compute.winograd import POINTS, TILE, WINDOW
from tilewright.expr.nodes import Expr, FloorDiv, Load, Select, Var
from tilewright.ir.node import postorder
from tilewright.schedule import Schedule
from tilewright.schedule.sketch.choices import Choices
from tilewright.schedule.sketch.classify import (
    Kind,
    address,
    free_dims,
    reduction_dims,
    stride,
)
from tilewright.schedule.sketch.context import Context, Machine
from tilewright.schedule.sketch.nest import (
    divisors,
    existing,
    extents,
    register_vectors,
    spread,
    vectorize_inner,
)
from tilewright.schedule.sketch.roles import Plan
from tilewright.schedule.sketch.tiled import PARALLEL_WORK, reduce_in_registers
from tilewright.schedule.sketch.tiles import Tile, choose_tile

PANEL = 4  # vectors of a panel of channels, at most
CACHE_SHARE = 0.8  # of the L2 cache, for a block's transformed inputs and products
SECOND, BEYOND = 32, 8  # bytes per cycle from the L2 cache, and from behind it
WAITING = 0.5  # the part of that traffic that does not hide behind arithmetic
STORED = 3  # cycles of a result vector's own: cleared, stored, and the loop
INPUT_COST, RESULT_COST = 40, 28  # cycles per tile and vector of channels, of the transforms
FLOAT = 4  # bytes
GAIN = 0.85  # of the direct convolution's cycles: at most that many must be left


@dataclass(frozen=True, slots=True)
class Shape:
    """A layer in tiles, rows of `columns` each, over channels `depth` to `width`, all results
    `points`."""

    batch: int
    rows: int
    columns: int
    depth: int
    width: int
    points: int

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.batch * self.rows * self.columns


@dataclass(frozen=True, slots=True)
class _Roles:
    """The dimensions of the result: batch, the two in space, the channels."""

    batch: tuple[Dim, ...]
    space: tuple[Dim, Dim]
    channels: Dim


@dataclass(frozen=True, slots=True)
class _Nest:
    """Loops over the results: blocks (none for one alone), panels, then a tile's, and channels."""

    blocks: Sequence[str]
    panels: Sequence[str]
    tile: tuple[str, str]
    channels: str


def winograd(s: Schedule, kind: Kind, at: Context, choose: Choices) -> Schedule:
    """See the module's docstring.

    parameters: `<product>.panel`, vectors of a panel of channels; `<product>.rows`, rows of tiles
    of a block; `<product>.tile`, rows of the register tile and its vectors; `<result>.parallel`.
    """
    assert kind.reduction is not None and kind.epilogue is not None
    inputs, product, result = kind.computations[1], kind.reduction, kind.epilogue
    shape, lanes = shape_of(kind), at.machine.lanes(product.outputs[0].tensor.dtype)
    panels = _panels(shape, lanes)
    if not panels:
        raise ScheduleError(
            f"{shape.width} channels are no whole vectors", where=f"kernel {s.kernel.name}"
        )
    panel = lanes * choose(f"{product.name}.panel", panels, panels[-1])
    blocks = divisors(shape.rows)
    block = choose(f"{product.name}.rows", blocks, _best(shape, panel, lanes, at.machine))
    nest = _nest(s, result, _roles(product, result), block, panel)
    for c, anchors in ((product, [*nest.blocks, *nest.panels]), (inputs, nest.blocks)):
        if anchors:
            s.compute_at(c.outputs[0].tensor.name, anchors[-1])
    s, staged = _stage_padding(s, inputs, nest.blocks, lanes)
    vectorize_inner(s, _loop(inputs, inputs.dims[-1]), lanes)
    tile = choose_tile(
        choose,
        f"{product.name}.tile",
        [block, shape.columns],
        panel,
        lanes,
        at.machine.registers,
    )
    _products(s, kind, tile, nest.panels)
    for name in nest.tile:
        s.unroll(name)
    vectorize_inner(s, nest.channels, lanes)
    work = POINTS * shape.depth * shape.width * shape.tiles
    if at.threads(choose, result.name, work >= PARALLEL_WORK):
        if not nest.blocks:
            spread(s, staged[:1])
            spread(s, [_loop(inputs, d) for d in inputs.dims[:1]])
        spread(s, nest.blocks or nest.panels)
    return s


def pays(kind: Kind, machine: Machine) -> bool:
    """Whether this is expected to be faster than the direct convolution, by a model of both.

    It counts vector multiply-adds (one per cycle), the transforms' instructions, and the traffic
    behind the L2 cache. Never where channels do not lie side by side in memory.
    """
    assert kind.reduction is not None and kind.epilogue is not None
    inputs, result = kind.computations[1], kind.epilogue
    shape, lanes = shape_of(kind), machine.lanes(kind.reduction.outputs[0].tensor.dtype)
    panels = _panels(shape, lanes)
    if not panels or min(shape.rows, shape.columns) < TILE or shape.depth < lanes:
        return False
    channels = _roles(kind.reduction, result).channels
    out = result.outputs[0]
    read = all(stride(address(a), inputs.dims[-1].var) == 1 for a in inputs.accesses)
    if not read or stride(address(Load(out.tensor, out.index)), channels.var) != 1:
        return False
    panel = lanes * panels[-1]
    cycles = _cycles(shape, _best(shape, panel, lanes, machine), panel, lanes, machine)
    direct = WINDOW * WINDOW * shape.depth * shape.width * shape.points / lanes
    return cycles < GAIN * direct


def shape_of(kind: Kind) -> Shape:
    """The layer's extents."""
    assert kind.reduction is not None and kind.epilogue is not None
    roles = _roles(kind.reduction, kind.epilogue)
    rows, columns = (-(-d.extent // TILE) for d in roles.space)
    batch = math.prod(d.extent for d in roles.batch)
    depth = math.prod(d.extent for d in reduction_dims(kind.reduction))
    points = batch * math.prod(d.extent for d in roles.space)
    return Shape(batch, rows, columns, depth, roles.channels.extent, points)


def _roles(product: Computation, result: Computation) -> _Roles:
    """Read off how the result reads the products: [point, batch.., h // 2, v // 2, channels]."""
    made = product.outputs[0].tensor
    read = next(a for a in result.accesses if a.buffer is made)
    by_var: dict[Expr, Dim] = {d.var: d for d in result.dims}
    h, v = (by_var[i.lhs] for i in read.index if isinstance(i, FloorDiv))
    plain = [by_var[i] for i in read.index if isinstance(i, Var)]
    return _Roles(tuple(plain[:-1]), (h, v), plain[-1])


def _panels(shape: Shape, lanes: int) -> list[int]:
    """Numbers of vectors that are whole panels, least first."""
    return [n for n in range(1, PANEL + 1) if shape.width % (n * lanes) == 0]


def _best(shape: Shape, panel: int, lanes: int, machine: Machine) -> int:
    """Rows of tiles of a block."""
    return min(divisors(shape.rows), key=lambda n: _cycles(shape, n, panel, lanes, machine))


def _cycles(shape: Shape, block: int, panel: int, lanes: int, machine: Machine) -> float:
    """Cycles of all threads together, with blocks of so many rows of tiles."""
    blocks, panels = shape.batch * shape.rows // block, shape.width // panel
    units = blocks if blocks > 1 else panels
    uneven = math.ceil(units / machine.cores) * machine.cores / units
    products = POINTS * (shape.depth + STORED) * shape.width
    transforms = INPUT_COST * shape.depth + RESULT_COST * shape.width
    arithmetic = (products + transforms) * shape.tiles / lanes
    held = POINTS * block * shape.columns * (shape.depth + panel) * FLOAT
    cache = CACHE_SHARE * machine.l2
    weights = POINTS * shape.depth * shape.width * FLOAT
    again = weights * (blocks - 1) / (SECOND if held + weights < cache else BEYOND)
    passes = (1 + panels) * max(0.0, 1 - cache / held)
    inputs = POINTS * shape.depth * shape.tiles * FLOAT * passes
    waiting = (weights + inputs) / BEYOND + again
    return uneven * (arithmetic + WAITING * waiting)


def _loop(c: Computation, d: Dim) -> str:
    return f"{c.name}.{d.var.name}"


def _nest(s: Schedule, result: Computation, roles: _Roles, block: int, panel: int) -> _Nest:
    """The loops over the results: blocks, panels, tiles, and the 2x2 points of a tile."""
    batch = existing(s, [_loop(result, d) for d in roles.batch])
    (h, a), (v, b) = (s.split(_loop(result, d), TILE, "guard") for d in roles.space)
    channels, panels = _loop(result, roles.channels), []
    if panel < roles.channels.extent:
        outer, channels = s.split(channels, panel)
        panels = [outer]
    blocks = list(batch)
    if block < extents(s.kernel)[h]:
        outer, h = s.split(h, block)
        blocks.append(outer)
    s.reorder(*blocks, *panels, h, v, a, b, channels)
    return _Nest(blocks, panels, (a, b), channels)


def _stage_padding(
    s: Schedule, inputs: Computation, blocks: Sequence[str], lanes: int
) -> tuple[Schedule, list[str]]:
    """Copy what a block reads with its padding, where reads are guarded; the loops of the copy."""
    guarded = {
        n.then.buffer.name
        for o in inputs.outputs
        for n in postorder(o.value)
        if isinstance(n, Select) and isinstance(n.then, Load)
    }
    for name in guarded:
        trial = s.fork()
        try:
            new = trial.cache_read(name, blocks[-1] if blocks else None, "global", pad=True)
        except ScheduleError:
            break  # it is read in another way as well: the reads keep their guards
        loops = existing(trial, [f"{new}.r{d}" for d in range(4)])
        vectorize_inner(trial, loops[-1], lanes)
        return trial, loops[:-1]
    return s, []


def _products(s: Schedule, kind: Kind, tile: Tile, panels: Sequence[str]) -> None:
    """A block's products in register tiles: per point and panel, all tiles go by."""
    product = kind.reduction
    assert product is not None
    point, *_, p, q, k = free_dims(product)
    depth = reduction_dims(product)
    outer, loops = [_loop(product, point)], {d: _loop(product, d) for d in depth}
    loops[k] = _loop(product, k)
    if tile.width < extents(s.kernel)[loops[k]]:
        across, loops[k] = s.split(loops[k], tile.width, "overlap")
        outer.append(across)
    weights = [*panels, *outer, *(loops[d] for d in depth)]
    rows = [d for d in (p, q) if existing(s, [_loop(product, d)])]
    inner = []
    for d, factor in zip((p, q), tile.rows, strict=True):
        name = _loop(product, d)
        if d not in rows:
            continue
        if factor == 1:
            outer.append(name)
            continue
        if factor < extents(s.kernel)[name]:
            whole, name = s.split(name, factor, "overlap")
            outer.append(whole)
        loops[d] = name
        inner.append(d)
    s.reorder(*outer, *(loops[d] for d in inner), loops[k])
    acc = s.cache_write(product.outputs[0].tensor.name, outer[-1], "register")
    plan = Plan((), tuple(inner), k, tuple(depth), (), tile)
    reduce_in_registers(s, plan, acc, loops)
    *rest, last = existing(s, [f"{acc}.w{n}" for n in range(len(product.dims))])
    for name in rest:
        s.unroll(name)
    register_vectors(s, last, tile.lanes)
    weights += [f"{loops[k]}.o", f"{loops[k]}.i", loops[k]]
    filters = kind.computations[0].outputs[0].tensor.name
    s.pack(filters, *existing(s, weights))
