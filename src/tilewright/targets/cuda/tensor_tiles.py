"""Products on tensor cores: tiles of warps, accumulated in their registers by `mma.sync`.

    blockIdx: results of each warp = 0
              for each tile of the sum:  fetch both factors' tiles into shared memory, together
                                         multiply: each warp its rows by its columns
              each warp stores its results in shared memory
              what follows the product, point by point, by all threads; store

A convolution is such a product: its rows are places of several dimensions, its columns are filters,
and a tile of the sum is some channels of one place of the window. Results with channels first are
in shared memory as they are stored: by columns, each with its rows. Ragged tiles are filled up with
zeros as they are fetched, and results outside are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.compute.nodes import Computation, Dim
from tilewright.compute.transforms import relayout
from tilewright.expr.nodes import Buffer, Cast, Expr, Load, Mul
from tilewright.loops.nodes import Kernel
from tilewright.loops.scopes import Scope
from tilewright.schedule import Schedule
from tilewright.schedule.space import Choices, Sketch
from tilewright.schedule.space.selection import legal_point
from tilewright.schedule.tree import find_buffer
from tilewright.targets.cuda.box_tiles import copies_boxes, fetch_box, note_boxes
from tilewright.targets.cuda.cluster_tiles import (
    best_cluster,
    cluster_shapes,
    note_cluster,
    takes_boxes,
)
from tilewright.targets.cuda.cost import (
    best_rows,
    best_stages,
    padded_read,
    row_layouts,
    spare_tiles,
    stage_counts,
)
from tilewright.targets.cuda.machine import WARP, CudaMachine
from tilewright.targets.cuda.persistent_tiles import (
    at_once,
    default_time,
    divides_by_default,
    fetch_next,
    persist_blocks,
    persisting,
    persists_by_default,
    results_in_parts,
)
from tilewright.targets.cuda.tensor_choice import (
    GROUPS,
    WARPS,
    UnitKind,
    is_turned,
    tensor_tiles,
    tiling_of,
)
from tilewright.targets.cuda.tensor_tiling import (
    ONE_BLOCK,
    PART_COLUMNS,
    PART_PADDING,
    ClusterShape,
    RowLayout,
    TensorTile,
    TensorTiling,
)
from tilewright.targets.cuda.tensor_units import (
    GROUP_UNITS,
    MMA,
    product_intrinsic,
    store_intrinsic,
)
from tilewright.targets.cuda.tensor_waves import shared_tensor_sums, tensor_waves
from tilewright.targets.simt.binding import bind_blocks
from tilewright.targets.simt.cost import GAIN, fetch_width
from tilewright.targets.simt.last_wave import WHOLE, LastWave, TilePart, tile_parts
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.predict import tiles, time_by_element, time_in_tiles
from tilewright.targets.simt.products import Product
from tilewright.targets.simt.schedules import InTiles, products_of, tiled_products
from tilewright.targets.simt.tiles import (
    TileCopy,
    cleared,
    fetch_ahead,
    fetch_tile,
    free_nest,
    grid_of,
    in_tiles,
    note_copies,
    results,
    with_shared_sums,
)
from tilewright.targets.simt.tiling import tiling

NAME = WARPS.name  # of the sketch


@dataclass(frozen=True, slots=True)
class TensorCores:
    """The tensor cores of a machine. exact: sums keep the program's order and its rounding. kind:
    what does a product, warps or groups of four. tf32: factors of float32 may be rounded to it.
    any_order: as of `SimtMachine`."""

    machine: CudaMachine
    exact: bool
    kind: UnitKind = WARPS
    tf32: bool = False
    any_order: bool = False

    @property
    def simt(self) -> SimtMachine:
        """The machine as schedules see it."""
        return replace(self.machine.simt, any_order=self.any_order)

    def refusal(self, p: Product) -> str:
        """Why tensor cores cannot compute a product; empty if they can."""
        left, right, out = _dtypes(p)
        unit = MMA if self.kind is WARPS else GROUP_UNITS[min(GROUP_UNITS)]
        found = product_intrinsic(left, right, out, unit, self.tf32)
        if found is None:
            both = left if left is right else f"{left} and {right}"
            return f"there is no instruction for {both} with sums in {out}"
        missing = [f for f in found.features if not self.machine.has(f)]
        if missing:
            return f"{self.machine.name} has no {found.name}: it needs {missing[0]}"
        if self.exact and found.tolerance:
            return f"{found.name} is not exact: it {found.rounding}"
        if not p.sums:
            return "it sums over one value only"
        work = with_one_column(p)
        if len(work.columns) != 1:
            return "it has several row dimensions and several column dimensions"
        if not _has_order(work, columns_first=work.left is not p.left):
            return "its results are not stored row by row"
        if not _is_plain(p):
            return "its factors are not read as they are"
        if not tensor_tiles(work, self.machine, self.kind):
            return "no tile fits the machine"
        return ""

    def time(self, p: Product) -> float | None:
        """Expected nanoseconds of a product in its best tile; None if tensor cores cannot compute
        it."""
        if self.refusal(p):
            return None
        work = with_one_column(p)
        tile = tensor_tiles(work, self.machine, self.kind)[0]
        best = tiling_of(work, tile, self.kind)
        return default_time(best, self.machine)

    def pays(self, p: Product) -> bool:
        """Whether a product is expected to be faster on tensor cores."""
        time, of = self.time(p), self.machine.simt
        others: list[float | None] = [time_by_element(p, of)]
        if self.kind is GROUPS:
            others.append(replace(self, kind=WARPS).time(p))
        for tile in tiles(p, of, of.shared_pays, self.exact)[:1]:
            plan = tiling(p, tile)
            others.append(time_in_tiles(plan, of, of.shared_pays, self.exact))
        return time is not None and GAIN * time < min(t for t in others if t)

    def with_sketch(
        self,
        found: Sequence[Sketch],
        kernel: Kernel,
        computations: Sequence[Computation],
    ) -> Sequence[Sketch]:
        """Sketches, best first, including that of tensor cores if they can compute a product."""
        given = tuple(computations)
        able = [p for p in products_of(given) if not self.refusal(p)]
        tiled = InTiles(self.schedule, self.exact)
        how = partial(tiled_products, kernel, given, self.simt, tiled)
        sketch = Sketch(self.kind.name, how)
        # What is inlined into it may make it another product.
        if not able or legal_point(kernel.name, sketch) is None:
            return found
        first = any(map(self.pays, able))
        return [sketch, *found] if first else [*found, sketch]

    def schedule(
        self, s: Schedule, p: Product, machine: SimtMachine, choose: Choices
    ) -> None:
        """Schedule a product; see the module's docstring. A product that tensor cores cannot
        compute is scheduled by `in_tiles`.

        parameters: `<reduction>.tensor_tile` or `.group_tile`, the tile of a block and its warps,
        or groups of four; `<operand>.rows`, the layout of a factor's tile; `<reduction>.boxes`,
        whether one thread copies tiles, and then `.cluster`, the blocks that do so together;
        `.persists`, whether a block has several tiles of results, then and for warps; `.last_wave`,
        `.blocks` and `.stages` of `in_tiles`. Raises ScheduleError if a primitive fails.
        """
        if self.refusal(p):
            in_tiles(s, p, machine, choose, self.exact)
            return
        work = with_one_column(p)
        if work.reduction is not p.reduction:
            columns_first = work.left is not p.left
            sides = replace(work, reduction=p.reduction)
            order = _order(sides, columns_first)
            s.transform_layout(p.reduction.outputs[0].tensor.name, _permutation(order))
        possible = tensor_tiles(work, self.machine, self.kind)
        tile = TensorTile(*choose(f"{p.name}.{self.kind.key}", possible, possible[0]))
        t = tiling_of(work, tile, self.kind)
        _in_tensor_tiles(s, t, self.machine, _form(t, self.machine, machine, choose))


def _dtypes(p: Product) -> tuple[DType, DType, DType]:
    """The dtypes of the factors and of the sums."""
    work = with_one_column(p)
    return work.left.dtype, work.right.dtype, p.reduction.outputs[0].tensor.dtype


def with_one_column(p: Product) -> Product:
    """The product with exchanged sides if that leaves it one column dimension: with channels first,
    places are columns. Its sums are then indexed in the order of its results."""
    if len(p.columns) == 1 or len(p.rows) != 1:
        return _in_order(p, columns_first=False)
    sides = replace(p, rows=p.columns, columns=p.rows, left=p.right, right=p.left)
    return _in_order(sides, columns_first=True)


def _in_order(p: Product, columns_first: bool) -> Product:
    """The product with the sums in another order, if they are only read by what follows it."""
    if p.epilogue is None or len(p.columns) != 1 or _has_order(p, columns_first):
        return p
    out = p.reduction.outputs[0]
    order = _order(p, columns_first)
    shape = tuple(out.tensor.shape[axis] for axis in order)
    moved = Buffer(out.tensor.name, shape, out.tensor.dtype)
    made = relayout(p.reduction, {out.tensor: (moved, order)})
    return replace(p, reduction=made)


def _order(p: Product, columns_first: bool) -> tuple[int, ...]:
    """The axes of the sums in order: the batch, rows, then the column, or the column first."""
    index, batch = p.reduction.outputs[0].index, {d.var for d in p.batch}
    rows, columns = ([d.var for d in side] for side in (p.rows, p.columns))
    wanted: list[Expr] = [i for i in index if i in batch]
    wanted += [*columns, *rows] if columns_first else [*rows, *columns]
    places = [n for n, i in enumerate(index) if i in wanted]
    order = list(range(len(index)))
    for n, v in zip(places, wanted, strict=True):
        order[n] = index.index(v)
    return tuple(order)


def _has_order(p: Product, columns_first: bool) -> bool:
    """Whether the sums are indexed by rows in order, and by the column last, or before the last row
    if it is first; by those of a batch, such as groups of channels, before all of them."""
    rows = [d.var for d in p.rows]
    (column,) = (d.var for d in p.columns)
    index, batch = p.reduction.outputs[0].index, {d.var for d in p.batch}
    found = [i for i in index if i in (*rows, column)]
    if not batch.isdisjoint(index[index.index(found[0]) :]):
        return False
    if columns_first:
        return found[-1] is rows[-1] and [i for i in found if i in rows] == rows
    return found == [*rows, column]


def _is_plain(p: Product) -> bool:
    """Whether the sum is of products of both factors, or of a constant where a condition says so,
    converted to its dtype if they have another."""
    value = p.reduction.outputs[0].value
    if not isinstance(value, Mul):
        return False
    sides = (s.value if isinstance(s, Cast) else s for s in (value.lhs, value.rhs))
    return set(map(padded_read, sides)) == {p.left, p.right}


def _permutation(order: Sequence[int]) -> str:
    """Axes in another order, as `transform_layout` has it."""
    axes = [f"i{n}" for n in range(len(order))]
    moved = [axes[n] for n in order]
    return f"lambda {', '.join(axes)}: ({', '.join(moved)})"


class TensorForm(NamedTuple):
    """What all tiles of a product on tensor cores have in common.

    in_boxes: whether one thread copies tiles; cluster: the blocks that do so together; persists:
    whether a block computes several tiles. wave: the last one. sharers: blocks that share each sum,
    and add their parts atomically. rows: the layout of each factor's tile. stages: tiles of a
    factor at once.
    """

    in_boxes: bool
    cluster: ClusterShape
    persists: bool
    wave: LastWave
    sharers: int
    rows: Mapping[Load, RowLayout]
    stages: int


def _form(
    t: TensorTiling, machine: CudaMachine, simt: SimtMachine, choose: Choices
) -> TensorForm:
    p = t.plan.product
    name, how = p.name, (t, machine)
    boxes = (True, False) if copies_boxes(*how) else (False,)
    in_boxes = choose(f"{name}.boxes", boxes, takes_boxes(*how))
    cluster, persists = ONE_BLOCK, False
    if in_boxes:
        divides = divides_by_default(*how)
        best = ONE_BLOCK if divides else best_cluster(*how)
        shapes = cluster_shapes(*how)
        cluster = ClusterShape(*choose(f"{name}.cluster", shapes, best))
        usual = not divides and persists_by_default(*how, cluster)
        persists = choose(f"{name}.persists", persisting(*how, cluster), usual)
    elif t.unit.threads == WARP and True in (able := persisting(*how)):
        persists = choose(f"{name}.persists", able, False)
    is_alone = cluster == ONE_BLOCK and not persists
    waves = tensor_waves(*how, in_boxes) if is_alone else [WHOLE]
    wave = LastWave(*choose(f"{name}.last_wave", waves, waves[0]))
    may_share = is_alone and wave == WHOLE
    counts = shared_tensor_sums(t, simt) if may_share else [1]
    sharers = choose(f"{name}.blocks", counts, 1) if len(counts) > 1 else 1
    rows = {}
    for read in (p.left, p.right):
        found = row_layouts(t, read), best_rows(t, read, machine)
        rows[read] = RowLayout(*choose(f"{read.buffer.name}.rows", *found))
    possible = stage_counts(*how, in_boxes, persists)
    fastest = best_stages(*how, in_boxes, cluster, persists)
    stages = choose(f"{name}.stages", possible, fastest)
    return TensorForm(in_boxes, cluster, persists, wave, sharers, rows, stages)


def _in_tensor_tiles(
    s: Schedule, t: TensorTiling, machine: CudaMachine, form: TensorForm
) -> None:
    """Schedule a product on tensor cores."""
    if form.sharers > 1:
        given = (t.plan, form.sharers, machine.simt)
        part, loop = with_shared_sums(s, *given, "warp")
        _TensorWork(s, replace(t, plan=part.plan), machine, form, part).run({})
        s.atomic(loop, "blockIdx.y")
        return
    target, last = results(s, t.plan.product)
    grid = grid_of(s, t.plan, last)
    in_parts = form.persists and t.unit.threads > WARP
    scope: Scope = "warp" if in_parts else "shared"
    how = (form.wave, scope, machine.simt)
    for part in tile_parts(s, t.plan, target, last, grid, *how):
        own = replace(t, plan=part.plan)
        _TensorWork(s, own, machine, form, part).run(last)


@dataclass(eq=False)
class _TensorWork:
    """The schedule of tiles of one kind on its way."""

    s: Schedule
    t: TensorTiling
    machine: CudaMachine
    form: TensorForm
    part: TilePart

    def run(self, last: Mapping[Dim, str]) -> None:
        """last: the loops of the results' reader in all tiles, by dimension."""
        s, t, form, part = self.s, self.t, self.form, self.part
        p = t.plan.product
        rows, (column,) = (
            [part.sums[d] for d in dims] for dims in (self.tiled_rows, p.columns)
        )
        held, stored = self.results()
        steps, inner = self.steps()
        zeros = cleared(s, part, held)
        nest = [part.sums[d] for d in free_nest(s, part)]
        single = [loop for loop in nest if loop not in (*rows, column)]
        s.reorder(*single, *steps, *rows, column, inner)
        outer = reduce(s.fuse, steps)
        fetched = [self.fetch(read, outer) for read in (p.left, p.right)]
        self.by_warps([zeros[d] for d in self.tiled_rows], zeros[p.columns[0]])
        product = self.by_warps(rows, column, inner)
        *stored_rows, stored_column = stored
        store = self.by_warps(stored_rows, stored_column, stored=True)
        left, right, out = _dtypes(p)
        intrinsic = product_intrinsic(left, right, out, t.unit, rounds=True)
        assert intrinsic is not None
        s.tensorize(product, intrinsic.name)
        columns = min(t.unit.columns, self.columns(stored=True))
        s.tensorize(store, store_intrinsic(out, t.unit._replace(columns=columns)).name)
        self.by_threads([part.stores[d] for d in self.tiled_rows], self.last_column())
        stages = min(form.stages, t.plan.steps)
        if stages > 1:
            spare = spare_tiles(t, stages)
            fetch_ahead(s, outer, fetched, stages, spare)
        if form.persists:
            count = at_once(t, self.machine, stages, form.cluster)
            tiles = persist_blocks(s, t, last, part.blocks, form.cluster, count)
            fetch_next(s, tiles, fetched)
        if form.in_boxes:
            note_boxes(s, fetched)
        elif stages > 1:
            note_copies(s, fetched, self.machine.simt)
        if not form.persists:
            bind_blocks(s, part.blocks)
            note_cluster(s, t, last, form.cluster)

    def results(self) -> tuple[str, list[str]]:
        """A block's accumulators, and the loops that store these in shared memory."""
        s, target = self.s, self.part.target
        if self.form.sharers > 1:
            shown = s.cache_read(target, None, "shared")
            s.storage_align(shown, self.rank(shown) - 2, *self.t.result_row)
            return target, self.axes(f"{shown}.r")
        if not self.in_parts:
            s.storage_align(target, self.rank(target) - 2, *self.t.result_row)
            held = self.accumulators(target)
            return held, self.axes(f"{held}.w")
        (row,) = (self.part.stores[d] for d in self.tiled_rows)
        column = self.part.stores[self.t.plan.product.columns[0]]
        part = results_in_parts(s, target, row, column)
        s.storage_align(part, self.rank(part) - 2, PART_COLUMNS, PART_PADDING)
        return target, self.axes(f"{part}.r")

    def last_column(self) -> str:
        """The loop over columns of a block at the reader of its results, or of a part of these."""
        column = self.part.stores[self.t.plan.product.columns[0]]
        return f"{column}.i" if self.in_parts else column

    def columns(self, stored: bool) -> int:
        """Columns of the threads of a unit: all of theirs, or of what they store at a time."""
        tile = self.t.tile
        whole = tile.columns // tile.column_warps
        return PART_COLUMNS if stored and self.in_parts else whole

    @property
    def in_parts(self) -> bool:
        """Whether results are in shared memory in parts."""
        return self.form.persists and self.t.unit.threads > WARP

    @property
    def tiled_rows(self) -> list[Dim]:
        """The dimensions along which a block has several rows, outermost first."""
        p, shares = self.t.plan.product, self.t.plan.shares
        return [d for d in p.rows if shares[d].size > 1]

    def steps(self) -> tuple[list[str], str]:
        """The loops over the steps of a block, outermost first, and that along a step."""
        s, t = self.s, self.t
        loops = {d: self.part.sums[d] for d in t.plan.product.sums}
        outer, inner = s.split(loops.pop(t.along), t.tile.depth)
        return [*loops.values(), outer], inner

    def accumulators(self, target: str) -> str:
        """The warps' results, in which the column is the last index."""
        held, t = self.s.cache_write(target, None, "warp"), self.t
        if t.columns_first:
            order = list(range(self.rank(held)))
            order.append(order.pop(self.place(held, t.plan.product.columns[0])))
            self.s.transform_layout(held, _permutation(order))
        return held

    def axes(self, loops: str) -> list[str]:
        """The loops that store a block's accumulators, of rows and of the column. loops: how their
        names begin, in front of the number of an index."""
        dims = (*self.tiled_rows, *self.t.plan.product.columns)
        name = loops.rpartition(".")[0]
        return [f"{loops}{self.place(name, d)}" for d in dims]

    def place(self, name: str, dim: Dim) -> int:
        """Which index of a buffer of results is along a dimension."""
        index = self.t.plan.product.reduction.outputs[0].index
        return self.rank(name) - len(index) + index.index(dim.var)

    def rank(self, name: str) -> int:
        """Dimensions of an allocated buffer."""
        held, _ = find_buffer(self.s.kernel, name, "tensorize")
        return len(held.shape)

    def fetch(self, read: Load, loop: str) -> str:
        """A factor's tile in shared memory, for each step."""
        rows = self.form.rows[read]
        width = fetch_width(self.t.plan, read, rows.room, self.machine.simt)
        how = TileCopy(rows.room, width, self.t.threads)
        if self.form.in_boxes:
            name = fetch_box(self.s, read, loop)
        else:
            name = fetch_tile(self.s, read, loop, how)
        if self.t.unit.threads > WARP and is_turned(self.t, read):
            self.in_blocks(name)
        if rows.is_swizzled:
            self.s.swizzle(name)
        return name

    def in_blocks(self, name: str) -> None:
        """A tile's rows in blocks of as many bytes as a unit reads, one block after another."""
        copied, _ = find_buffer(self.s.kernel, name, "tensorize")
        axes = [f"i{n}" for n in range(self.rank(name))]
        *around, row, last = axes
        n = self.t.unit.depth // copied.dtype.itemsize
        if copied.shape[-1] > n:
            places = [*around, f"{last} // {n}", row, f"{last} % {n}"]
            moved = f"lambda {', '.join(axes)}: ({', '.join(places)})"
            self.s.transform_layout(name, moved)

    def by_warps(
        self, rows: Sequence[str], column: str, along: str = "", stored: bool = False
    ) -> str:
        """Rows and columns dealt out to warps, in tiles of an instruction; the nest of one."""
        s, t = self.s, self.t
        warps, downs = [], []
        for dim, loop in zip(self.tiled_rows, rows, strict=True):
            warp, down = s.split(loop, t.plan.shares[dim].each)
            warps.append(warp)
            downs.append(down)
        downs[-1:] = s.split(downs[-1], t.unit.rows)
        *downs, row = downs
        columns_ = self.columns(stored)
        column_warp, column = s.split(column, columns_)
        across, column = s.split(column, min(t.unit.columns, columns_))
        columns = [column]
        if t.unit.in_blocks and not stored:
            columns = list(s.split(column, t.factor))
        inner = [*downs, across]
        factor = []
        if along:
            step, factor_loop = s.split(along, t.factor)
            inner, factor = [step, *inner], [factor_loop]
        s.reorder(*warps, column_warp, *inner, row, *columns, *factor)
        for loop in inner:
            s.unroll(loop)
        s.bind(reduce(s.fuse, warps), "threadIdx.y")
        s.bind(column_warp, "threadIdx.z")
        return row

    def by_threads(self, tile_rows: Sequence[str], column: str) -> None:
        """Distribute the loops over the results to all threads: a warp's threads have adjacent
        ones."""
        s, tile = self.s, self.t.tile
        parts = []
        if self.t.columns_first or self.in_parts:
            loops = [*tile_rows, column]
            if self.t.columns_first:
                loops = [column, *tile_rows]
                s.reorder(*loops)
            row, own = s.split(reduce(s.fuse, loops), self.t.unit.threads)
        else:
            s.reorder(*tile_rows, column)
            row = reduce(s.fuse, tile_rows)
            part, own = s.split(column, self.t.unit.threads)
            parts.append(part)
        rows, row_warp = s.split(row, tile.row_warps * tile.column_warps)
        column_warp, row_warp = s.split(row_warp, tile.row_warps)
        s.reorder(column_warp, row_warp, own, rows, *parts)
        for loop in (rows, *parts):
            s.unroll(loop)
        s.bind(column_warp, "threadIdx.z")
        s.bind(row_warp, "threadIdx.y")
        s.bind(own, "threadIdx.x")
