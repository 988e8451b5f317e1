"""Winograd's convolution as one kernel: blocks of tiles stay in the cache from inputs to results.

For each block of rows of tiles: its inputs are transformed, and for each panel of channels the
products of all points (in register tiles) and the transform of their results, with the map after
it. One block alone is shared by the threads panel by panel. The filters are transformed where they
are constants: by the compiler. The tile, 2 x 2 or 4 x 4 results, is read off the Computations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import Computation, Dim
from tilewright.compute.toom_cook import Filtering, filtering
from tilewright.compute.winograd import WINDOW
from tilewright.expr.nodes import Buffer, Const, Expr, FloorDiv, Load, Select, Var
from tilewright.ir.node import postorder
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    divisors,
    existing,
    extents,
    register_vectors,
    spread,
    vectorize_inner,
    written_out,
)
from tilewright.schedule.space.patterns import (
    KernelPattern,
    address,
    free_dims,
    reduction_dims,
    stride,
)
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.register_tile_model import (
    RowData,
    Tile,
    choose_tile,
)
from tilewright.targets.cpu.sketches.roles import TilePlan
from tilewright.targets.cpu.sketches.tiled_reduction import reduce_in_registers

# Of the cycles of panels, up to which the model does not tell them apart.
EQUAL: Final = 1.01


@dataclass(frozen=True, slots=True)
class Shape:
    """A layer in tiles of `tile` x `tile`, rows of `columns` each, over channels `depth` to
    `width`; `results` are all its results per channel, from windows `stride` apart."""

    tile: int
    stride: int
    batch: int
    rows: int
    columns: int
    depth: int
    width: int
    results: int

    @property
    def filtering(self) -> Filtering:
        """Of one axis."""
        return filtering(self.tile, WINDOW, self.stride)

    @property
    def points(self) -> int:
        """Products per tile and channel."""
        return self.filtering.size**2

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.batch * self.rows * self.columns


@dataclass(frozen=True, slots=True)
class _Roles:
    """The dimensions of the result: batch, the two in space, the channels; results of a tile."""

    tile: int
    batch: tuple[Dim, ...]
    space: tuple[Dim, Dim]
    channels: Dim


@dataclass(frozen=True, slots=True)
class _Nest:
    """Loops over the results: blocks (none for one alone), panels, tiles, vectors of channels, then
    a tile's, and the channels of a vector."""

    blocks: Sequence[str]
    panels: Sequence[str]
    tiles: tuple[str, str]
    tile: tuple[str, str]
    channels: str


def winograd(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: `<product>.panel`, vectors of a panel of channels; `<product>.rows`, rows of tiles
    of a block; `<product>.tile`, rows of the register tile and its vectors; `<product>.unroll`;
    `<product>.apart`, whether tiles at the edges are; `<inputs>.at`, where they are transformed;
    `<inputs>.points`, whether a tile's points are together; `<result>.parallel`, `.shared`.
    """
    assert pattern.reduction is not None and pattern.epilogue is not None
    inputs, product, result = (
        pattern.computations[1],
        pattern.reduction,
        pattern.epilogue,
    )
    costs = at.costs
    shape = shape_of(pattern)
    lanes = at.machine.lanes(product.outputs[0].tensor.dtype)
    panel = _panel(s, shape, product.name, lanes, costs, choose)
    blocks = divisors(shape.rows)
    block = choose(
        f"{product.name}.rows", blocks, rows_of_block(shape, panel, lanes, costs)
    )
    nest = _nest(s, result, _roles(product, result), block, panel, lanes)
    around = _computed_within(s, inputs, product, nest, choose)
    s, staged = _stage_padding(s, inputs, around, lanes)
    vectorize_inner(s, _loop(inputs, inputs.dims[-1]), lanes)
    tile = choose_tile(
        choose,
        f"{product.name}.tile",
        [block, shape.columns],
        panel,
        lanes,
        costs,
        RowData(packed=at.packed),
    )
    _products(s, pattern, tile, nest.panels)
    sums = [_loop(product, d) for d in reduction_dims(product)]
    written_out(s, sums, choose, product.name, costs.written)
    for name in nest.tile:
        s.unroll(name)
    s.vectorize(nest.channels)
    if choose(f"{product.name}.apart", (True, False), True):
        _whole_tiles(s, nest)
    for c in (inputs, product):
        if choose(f"{c.name}.points", (True, False), True):
            _points_together(s, c.outputs[0].tensor, at.machine.line)
    work = shape.points * shape.depth * shape.width * shape.tiles
    if at.threads(choose, result.name, costs.worth_sharing(work * costs.product_ns)):
        if not around:
            spread(s, staged[:1])
            spread(s, [_loop(inputs, d) for d in inputs.dims[:1]])
        at.share(s, nest.blocks or nest.panels, choose, result.name)
    return s


def winograd_is_profitable(pattern: KernelPattern, costs: CostModel) -> bool:
    """Whether this is expected to be faster than the direct convolution, by a model of both.

    It counts vector multiply-adds (one per cycle), the transforms' instructions, the traffic after
    the L2 cache, and the first read of the weights, each by one core in the direct form. Never
    where channels are not side by side in memory.
    """
    assert pattern.reduction is not None and pattern.epilogue is not None
    inputs = pattern.computations[1]
    result = pattern.epilogue
    shape, lanes = (
        shape_of(pattern),
        costs.machine.lanes(pattern.reduction.outputs[0].tensor.dtype),
    )
    panels = _panels(shape, lanes, costs)
    if not panels:
        return False
    if min(shape.rows, shape.columns) < 2:
        return False
    if shape.depth < lanes:
        return False
    channels = _roles(pattern.reduction, result).channels
    out = result.outputs[0]
    read = all(stride(address(a), inputs.dims[-1].var) == 1 for a in inputs.accesses)
    if not read:
        return False
    if stride(address(Load(out.tensor, out.index)), channels.var) != 1:
        return False
    width = _whole(shape.width, lanes)
    products = WINDOW * WINDOW * shape.depth * width * shape.results
    direct = products / lanes / costs.multiply_rate(lanes, float32.itemsize)
    weights = WINDOW * WINDOW * shape.depth * shape.width * float32.itemsize
    direct += weights * costs.cold_byte  # each of them to one core
    return winograd_cycles(pattern, costs) < costs.winograd_gain * direct


def winograd_cycles(pattern: KernelPattern, costs: CostModel) -> float:
    """Those of all threads together, by the model, where the channels are whole vectors."""
    assert pattern.reduction is not None
    shape, lanes = (
        shape_of(pattern),
        costs.machine.lanes(pattern.reduction.outputs[0].tensor.dtype),
    )
    panels = _panels(shape, lanes, costs)
    panel = panels[_usual(shape, panels, lanes, costs)]
    return _cycles(
        shape, rows_of_block(shape, panel, lanes, costs), panel, lanes, costs
    )


def shape_of(pattern: KernelPattern) -> Shape:
    """The layer's extents."""
    assert pattern.reduction is not None and pattern.epilogue is not None
    roles = _roles(pattern.reduction, pattern.epilogue)
    rows, columns = (-(-d.extent // roles.tile) for d in roles.space)
    batch = math.prod(d.extent for d in roles.batch)
    depth = math.prod(d.extent for d in reduction_dims(pattern.reduction))
    results = batch * math.prod(d.extent for d in roles.space)
    point, *_ = free_dims(pattern.reduction)
    stride = (math.isqrt(point.extent) - WINDOW) // (roles.tile - 1)
    width = roles.channels.extent
    return Shape(roles.tile, stride, batch, rows, columns, depth, width, results)


def _roles(product: Computation, result: Computation) -> _Roles:
    """Read off how the result reads the products: [point, batch.., h // m, v // m, channels]."""
    made = product.outputs[0].tensor
    read = next(a for a in result.accesses if a.buffer is made)
    by_var: dict[Expr, Dim] = {d.var: d for d in result.dims}
    places = [i for i in read.index if isinstance(i, FloorDiv)]
    h, v = (by_var[i.lhs] for i in places)
    (tile,) = {
        m
        for i in places
        if isinstance(i.rhs, Const) and isinstance(m := i.rhs.value, int)
    }
    plain = [by_var[i] for i in read.index if isinstance(i, Var)]
    return _Roles(tile, tuple(plain[:-1]), (h, v), plain[-1])


def _panel(
    s: Schedule,
    shape: Shape,
    product: str,
    lanes: int,
    costs: CostModel,
    choose: Choices,
) -> int:
    """The channels of a panel."""
    panels = _panels(shape, lanes, costs)
    if not panels:
        raise ScheduleError(
            f"{shape.width} channels are less than a vector, or not panels of vectors",
            where=f"kernel {s.kernel.name}",
        )
    usual = _usual(shape, panels, lanes, costs)
    return panels[choose(f"{product}.panel", list(panels), usual)]


def _panels(shape: Shape, lanes: int, costs: CostModel) -> dict[int, int]:
    """The channels of a panel by its vectors, least first: whole vectors where the channels are.

    Else the last vector of a panel overlaps the one before. If panels of whole vectors
    have one only, all channels are a panel, too: each panel reads all transformed inputs again.
    """
    found = {}
    for channels in divisors(shape.width):
        if lanes <= channels:
            found[ceil_div(channels, lanes)] = channels
    whole = {
        n: channels
        for n, channels in found.items()
        if channels == n * lanes and n <= costs.panel_vectors
    }
    if set(whole) == {1}:
        whole[shape.width // lanes] = shape.width
    return whole or found


def _usual(
    shape: Shape, panels: Mapping[int, int], lanes: int, costs: CostModel
) -> int:
    """The vectors of a panel that the rule takes: many, if all are whole. Else those that cost
    least by the model, which sees the lanes that are computed twice; of equals the widest, which
    leaves room for wide register tiles."""
    if all(channels == n * lanes for n, channels in panels.items()):
        return max(panels)
    cycles = {
        n: _cycles(
            shape, rows_of_block(shape, channels, lanes, costs), channels, lanes, costs
        )
        for n, channels in panels.items()
    }
    least = min(cycles.values())
    return max(n for n, c in cycles.items() if c <= EQUAL * least)


def _whole(channels: int, lanes: int) -> int:
    """The lanes of the vectors that cover so many channels."""
    return ceil_div(channels, lanes) * lanes


def rows_of_block(shape: Shape, panel: int, lanes: int, costs: CostModel) -> int:
    """Rows of tiles of a block: those that cost least by the model."""
    return min(
        divisors(shape.rows), key=lambda n: _cycles(shape, n, panel, lanes, costs)
    )


def _cycles(
    shape: Shape, block: int, panel: int, lanes: int, costs: CostModel
) -> float:
    """Cycles summed over all threads, with blocks of this many rows of tiles.

    Weights that every block rereads stream in during its products, unless no cache keeps them: then
    the block waits for them. A core waits for their first read in any case: other kernels of the
    network have displaced them. A block's own data is cold at the start of the kernel, and warm for
    the blocks after the first.
    """
    machine = costs.machine
    blocks = shape.batch * shape.rows // block
    panels = shape.width // panel
    units = blocks if blocks > 1 else panels
    itemsize = float32.itemsize
    uneven = math.ceil(units / machine.cores) * machine.cores / units
    rate = costs.multiply_rate(lanes, float32.itemsize)
    vectors = shape.tiles / lanes / rate
    width = panels * _whole(panel, lanes)
    products = shape.points * (shape.depth + costs.cleared) * width * vectors
    transforms = vectors * (
        _input_cost(shape, costs) * _whole(shape.depth, lanes)
        + _result_cost(shape, costs) * width
    )
    held = shape.points * block * shape.columns * (shape.depth + panel) * itemsize
    cache = costs.full * machine.l2
    weights = shape.points * shape.depth * shape.width * itemsize
    near = held + weights < cache
    first = min(blocks, machine.cores)  # blocks at a time: each core gets all weights
    again = weights * (blocks - first)
    streamed = again / (costs.second_bytes if near else costs.far_bytes)
    passes = (1 + panels) * max(0.0, 1 - cache / held)
    inputs = shape.points * shape.depth * shape.tiles * itemsize
    fetched = inputs * passes + held
    if weights > costs.kept_weights:
        fetched += again
    waiting = costs.exposed_traffic * fetched / costs.far_bytes
    waiting += weights * first * costs.cold_byte
    multiplied = max(products, streamed)
    exchanged = inputs * _exchanged(blocks, held, weights, costs)
    alone = multiplied + transforms + waiting
    return uneven * alone + exchanged


def _exchanged(blocks: int, held: float, weights: int, costs: CostModel) -> float:
    """Cycles for a byte of transformed inputs that goes from core to core.

    Where cores share the panels of one block, each of them reads all inputs, and the others have
    made most of them: from their second caches, unless a core's share of the kernel's data has
    displaced it there.
    """
    machine = costs.machine
    if blocks > 1 or machine.cores == 1:
        return 0.0
    used = (held + weights / machine.cores) / machine.l2
    return costs.exchanged * min(1.0, max(0.0, 2.0 - used))


def _input_cost(shape: Shape, costs: CostModel) -> float:
    """Cycles of B^T d B, per tile and vector of channels."""
    f = shape.filtering
    return 2 * f.size * f.inputs.operations + costs.beside * 2 * f.size**2


def _result_cost(shape: Shape, costs: CostModel) -> float:
    """Cycles of A^T p A, per tile and vector of channels."""
    f = shape.filtering
    return (f.size + f.tile) * f.results.operations + costs.beside * (
        f.size**2 + f.tile**2
    )


def _loop(c: Computation, d: Dim) -> str:
    return f"{c.name}.{d.var.name}"


def _nest(
    s: Schedule, result: Computation, roles: _Roles, block: int, panel: int, lanes: int
) -> _Nest:
    """The loops over the results: blocks, panels, tiles, and the results of a tile."""
    batch = existing(s, [_loop(result, d) for d in roles.batch])
    (h, a), (v, b) = (
        s.split(_loop(result, d), roles.tile, "guard") for d in roles.space
    )
    channels = _loop(result, roles.channels)
    panels = []
    if panel < roles.channels.extent:
        outer, channels = s.split(channels, panel)
        panels = [outer]
    blocks = list(batch)
    if block < extents(s.kernel)[h]:
        outer, h = s.split(h, block)
        blocks.append(outer)
    vectors = []
    if lanes < panel:
        outer, channels = s.split(channels, lanes, "overlap")
        vectors = [outer]
    s.reorder(*blocks, *panels, h, v, *vectors, a, b, channels)
    return _Nest(blocks, panels, (h, v), (a, b), channels)


def _computed_within(
    s: Schedule, inputs: Computation, product: Computation, nest: _Nest, choose: Choices
) -> Sequence[str]:
    """Move the products into the panels, and the transformed inputs into the blocks or nowhere.

    The loops that the inputs are now inside.
    """
    around = nest.blocks
    if around:
        place = choose(f"{inputs.name}.at", ("block", "root"), "block")
        around = around if place == "block" else []
    for c, anchors in ((product, [*nest.blocks, *nest.panels]), (inputs, around)):
        if anchors:
            s.compute_at(c.outputs[0].tensor.name, anchors[-1])
    return around


def _whole_tiles(s: Schedule, nest: _Nest) -> None:
    """Tiles that stick out over an edge apart: results of the others need no guards, and share what
    they have in common."""
    for name in reversed(nest.tiles):
        try:
            s.partition_loop(name)
        except ScheduleError:
            continue


def _points_together(s: Schedule, made: Buffer, line: int) -> None:
    """Store a tile's points side by side, an odd number of cache lines apart.

    Else powers of two of tiles and channels would let them displace one another in the first cache.
    """
    point, *tiles, channel = (f"i{n}" for n in range(len(made.shape)))
    old = ", ".join([point, *tiles, channel])
    new = ", ".join([*tiles, point, channel])
    s.transform_layout(made.name, f"lambda {old}: ({new})")
    elements = line // made.dtype.itemsize
    s.storage_align(made.name, len(tiles), 2 * elements, elements)


def _stage_padding(
    s: Schedule, inputs: Computation, blocks: Sequence[str], lanes: int
) -> tuple[Schedule, list[str]]:
    """Copy what a block reads with its padding, where reads are guarded; the loops of the copy."""
    rank = len(inputs.accesses[0].buffer.shape)
    guarded = {
        n.then.buffer.name
        for o in inputs.outputs
        for n in postorder(o.value)
        if isinstance(n, Select) and isinstance(n.then, Load)
    }
    for name in guarded:
        trial = s.fork()
        try:
            new = trial.cache_read(
                name, blocks[-1] if blocks else None, "global", pad=True
            )
        except ScheduleError:
            break  # it is read in another way as well: the reads keep their guards
        loops = existing(trial, [f"{new}.r{d}" for d in range(rank)])
        vectorize_inner(trial, loops[-1], lanes)
        return trial, loops[:-1]
    return s, []


def _products(
    s: Schedule, pattern: KernelPattern, tile: Tile, panels: Sequence[str]
) -> None:
    """A block's products in register tiles: per point and panel, all tiles go by."""
    product = pattern.reduction
    assert product is not None
    point, *_, p, q, k = free_dims(product)
    depth = reduction_dims(product)
    outer = [_loop(product, point)]
    loops = {d: _loop(product, d) for d in depth}
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
    plan = TilePlan(
        batch=(),
        rows=tuple(inner),
        vector=k,
        reduction=tuple(depth),
        columns=(),
        tile=tile,
    )
    reduce_in_registers(s, plan, acc, loops)
    *rest, last = existing(s, [f"{acc}.w{n}" for n in range(len(product.dims))])
    for name in rest:
        s.unroll(name)
    register_vectors(s, last, tile.lanes)
    weights += [f"{loops[k]}.o", f"{loops[k]}.i", loops[k]]
    filters = pattern.computations[0].outputs[0].tensor.name
    s.pack(filters, *existing(s, weights))
