"""Attention over blocks of keys on tensor cores: both products, and between them only registers.

    blockIdx: what is around a row; a tile of rows of queries, some for each warp
              fetch the queries
              registers of each thread: the greatest score and the sum of its rows, its means
              for each block of keys:  fetch keys and values into shared memory
                                       scores by `mma.sync`; the softmax of each row, by a quad
                                       the shares, rounded, times the values by `mma.sync`
                                       take them into the mean of the blocks before
              store

The threads of a warp are four on x and eight on y: thread (x, y) has rows y + 8*i and columns
2*x + 8*j + (0, 1) of each tile, as `mma.sync` has its results, and its left factor. So the scores
become shares in the registers where they are, and these are a factor of the second product
(FlashAttention-2, Dao 2023). Rows of keys beyond the last one are zeros with scores of -inf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Cast, Load, Mul
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.async_copies import copied
from tilewright.schedule import Schedule
from tilewright.schedule.space import Sketch
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.inlining import inlined
from tilewright.schedule.space.patterns import reduction_dims
from tilewright.schedule.space.selection import legal_point
from tilewright.targets.cuda.attention_cost import (
    FragmentTiling,
    RowTile,
    best_stages,
    fragment_tiling,
    row_layouts,
    row_tiles,
    stage_counts,
    time_on_tensor_cores,
)
from tilewright.targets.cuda.cost import copy_width
from tilewright.targets.cuda.intrinsics import COLUMNS, QUADS, ROWS
from tilewright.targets.cuda.machine import CudaMachine
from tilewright.targets.cuda.tensor_units import product_intrinsic
from tilewright.targets.simt.attention import (
    Attention,
    AttentionWork,
    loop_of,
    parts_of,
)
from tilewright.targets.simt.binding import bind_blocks
from tilewright.targets.simt.tiles import (
    TileCopy,
    fetch_ahead,
    fetch_tile,
    note_copies,
)

NAME: Final = "attention on tensor cores"  # of the sketch
PAIR: Final = 2  # neighboring columns of a thread


@dataclass(frozen=True, slots=True)
class TensorAttention:
    """Attention on the tensor cores of a machine. exact: sums keep the program's order."""

    machine: CudaMachine
    exact: bool

    def refusal(self, a: Attention) -> str:
        """Why tensor cores cannot compute it; empty if they can."""
        queries, keys, values = a.operands
        of = {x.dtype for x in (queries, keys, values)}
        of.add(a.inner[-1].outputs[0].tensor.dtype)
        sums = {c.outputs[0].tensor.dtype for c in (a.scores, a.mean)}
        if len(of) > 1 or len(sums) > 1:
            return "its factors, or the sums of its products, have several dtypes"
        (factor,), (out,) = of, sums
        found = product_intrinsic(factor, factor, out)
        if found is None or "warp" not in {row[0] for row in found.scopes}:
            return f"there is no instruction for {factor} in registers"
        missing = [f for f in found.features if not self.machine.has(f)]
        if missing:
            return f"{self.machine.name} has no {found.name}: it needs {missing[0]}"
        if self.exact:
            return f"{found.name} is not exact: it {found.rounding}"
        if not all(_is_plain(c) for c in (a.scores, a.mean)):
            return "its factors are not read as they are"
        if not row_tiles(a, self.machine):
            return "no tile fits the machine"
        return ""

    def time(self, computations: Sequence[Computation]) -> float | None:
        """Expected nanoseconds in the best tile; None if it is nothing for tensor cores."""
        a = parts_of(computations)
        if a is None or self.refusal(a):
            return None
        t = fragment_tiling(a, row_tiles(a, self.machine)[0])
        return time_on_tensor_cores(t, self.machine, best_stages(t, self.machine))

    def sketch(
        self, kernel: Kernel, computations: Sequence[Computation]
    ) -> Sketch | None:
        """Its schedule, legal with its defaults; None if there is none."""
        if self.time(computations) is None:
            return None
        given = tuple(computations)
        sketch = Sketch(NAME, partial(_run, kernel, given, self))
        # What is inlined into it may make it something else.
        return None if legal_point(kernel.name, sketch) is None else sketch


def _is_plain(c: Computation) -> bool:
    """Whether it sums products of converted elements, or of zeros where a condition says so."""
    value = c.outputs[0].value
    if not isinstance(value, Mul):
        return False
    sides = (value.lhs, value.rhs)
    return all(isinstance(s, Cast) and copied(s.value) is not None for s in sides)


def _run(
    kernel: Kernel,
    computations: Sequence[Computation],
    cores: TensorAttention,
    choose: Choices,
) -> Schedule:
    return by_fragments(Schedule(kernel), computations, cores, choose)


def by_fragments(
    s: Schedule,
    computations: Sequence[Computation],
    cores: TensorAttention,
    choose: Choices,
) -> Schedule:
    """See the module's docstring. requires: `TensorAttention.refusal` is empty.

    parameters: those of `inlined`; `attention.tensor_tile`, the rows of a block and its warps;
    `attention.stages`, blocks of keys and values that a block has at once. Raises ScheduleError if
    a primitive fails.
    """
    s, rest = inlined(s, computations, choose)
    a = parts_of(rest)
    if a is None or cores.refusal(a):
        raise ScheduleError("after inlining, it is nothing for tensor cores")
    s = s.fork()
    possible = row_tiles(a, cores.machine)
    tile = RowTile(*choose("attention.tensor_tile", possible, possible[0]))
    t = fragment_tiling(a, tile)
    counts = stage_counts(t, cores.machine)
    stages = choose("attention.stages", counts, best_stages(t, cores.machine))
    work = _FragmentWork(s, a, tile.rows, t, cores.machine)
    work.blocks()
    work.inside()
    work.fetch()
    work.bind(stages)
    return s


@dataclass(eq=False)
class _FragmentWork(AttentionWork):
    """The same, by warps."""

    t: FragmentTiling
    machine: CudaMachine
    fetched: Sequence[str] = field(default=(), init=False)

    def scope(self, c: Computation) -> str:
        """Results of products, and their factor, are in the registers of warps."""
        a = self.a
        return "warp" if c in (a.scores, a.mean, a.inner[-1]) else "register"

    def fetch(self) -> None:
        """The queries of a block's rows, and the keys and values of each block of keys."""
        queries, *others = self.t.reads
        self.fetch_one(queries, self.grid[-1])
        self.fetched = [self.fetch_one(read, self.a.key_loop) for read in others]

    def fetch_one(self, read: Load, loop: str) -> str:
        """A tile of an operand in shared memory; its buffer."""
        of, rows = self.t.reads[read], row_layouts(self.t, self.machine)[read]
        width = copy_width(of, read, rows, self.machine)
        how = TileCopy(rows.room, width, self.t.tile.threads)
        name = fetch_tile(self.s, read, loop, how)
        if rows.is_swizzled:
            self.s.swizzle(name)
        return name

    def bind(self, stages: int) -> None:
        """Every phase to the threads, and the grid; blocks of keys ahead, or skipped."""
        s, a = self.s, self.a
        phases = self.phases()
        if a.skips and stages == 1:
            s.skip(a.key_loop)
        for c in (a.scores, a.mean):
            self.product(c, *phases[c])
        for c in a.inner:
            self.points(*phases[c], inner=c.is_map)
        self.by_rows(loop_of(a.kept, a.kept.outputs[0].index[-1]))
        row, column = phases[a.online]
        s.hoist_update(column)
        *_, start_row, start_column = self.start
        self.points(start_row, start_column, inner=False)
        self.points(row, column, inner=False)
        last = loop_of(a.last, a.row.var)
        self.points(f"{last}.i", loop_of(a.last, a.column.var))
        if stages > 1:
            fetch_ahead(s, a.key_loop, self.fetched, stages)
            note_copies(s, self.fetched, self.machine.simt)
        bind_blocks(s, self.grid)

    def product(self, c: Computation, row: str, column: str) -> None:
        """A product by tensor cores: each warp its rows by all columns."""
        s, (along,) = self.s, reduction_dims(c)
        target = c.outputs[0].tensor
        *_, zero_row, zero_column = s.decompose_reduction(target.name, row)
        of = self.t.scores.plan.product.left.dtype
        intrinsic = product_intrinsic(of, of, target.dtype)
        assert intrinsic is not None
        self.in_tiles(zero_row, zero_column)
        nest = self.in_tiles(row, column, loop_of(c, along.var))
        s.tensorize(nest, intrinsic.name)

    def in_tiles(self, row: str, column: str, along: str = "") -> str:
        """Rows dealt out to warps, in tiles of an instruction; the nest of one."""
        s = self.s
        warp, down = s.split(row, ROWS * self.t.tile.down)
        down, row = s.split(down, ROWS)
        across, column = s.split(column, COLUMNS)
        inner, factor = [down, across], []
        if along:
            step, own = s.split(along, self.t.scores.factor)
            inner, factor = [step, *inner], [own]
        s.reorder(warp, *inner, row, column, *factor)
        for loop in inner:
            s.unroll(loop)
        s.bind(warp, "threadIdx.z")
        return row

    def points(self, row: str, column: str, inner: bool = True) -> None:
        """Rows and columns dealt out as fragments are. inner: whether all loops of a thread are
        inside those over threads, else the columns' are in the rows'."""
        own_rows, rows = self.by_rows(row)
        own_columns, columns = self.by_columns(column)
        if inner:
            self.s.reorder(*own_rows, own_columns, rows, *columns)

    def by_rows(self, loop: str) -> tuple[list[str], str]:
        """Rows dealt out to warps and to their threads on y: the loops over these, and over the
        rows of one thread."""
        s, (_, down) = self.s, QUADS
        warp, row = s.split(loop, ROWS * self.t.tile.down)
        rows, own = s.split(row, down)
        s.reorder(warp, own, rows)
        s.bind(warp, "threadIdx.z")
        s.bind(own, "threadIdx.y")
        s.unroll(rows)
        return [warp, own], rows

    def by_columns(self, loop: str) -> tuple[str, list[str]]:
        """Columns dealt out in pairs to threads on x: the loop over these, and over the columns of
        one thread."""
        s, (across, _) = self.s, QUADS
        columns, own = s.split(loop, PAIR * across)
        own, pair = s.split(own, PAIR)
        s.reorder(own, columns, pair)
        s.bind(own, "threadIdx.x")
        for part in (columns, pair):
            s.unroll(part)
        return own, [columns, pair]
