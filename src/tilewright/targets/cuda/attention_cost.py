"""What attention takes on tensor cores: closed forms, and the tiles of rows that fit.

Both products are products in tiles (`cost.py`) of which a block has all columns, and a step all of
the sum. A step, that is a block of keys, takes as long as the slowest of: the tensor cores,
instructions that are issued, turns of shared memory, bytes from the device's memory; then the waits
that other blocks of the unit do not hide. Rates have not been measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.compute.hidden_keys import seen_share
from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Expr, Load
from tilewright.schedule.space.patterns import free_dims, reduction_dims
from tilewright.targets.cuda.cost import (
    FEEDING,
    arrive_later,
    best_rows,
    operand_requests,
    turns_time,
)
from tilewright.targets.cuda.intrinsics import COLUMNS, QUADS, ROWS
from tilewright.targets.cuda.machine import WARP, CudaMachine
from tilewright.targets.cuda.tensor_tiling import (
    RowLayout,
    TensorTile,
    TensorTiling,
    tensor_tiling,
)
from tilewright.targets.simt.attention import Attention
from tilewright.targets.simt.attention_cost import EXPONENTIAL
from tilewright.targets.simt.cost import (
    LATENCY,
    OWN_REGISTERS,
    SECTOR,
    SYNC,
    WarpRequest,
    shared_bytes,
)
from tilewright.targets.simt.products import Product

TILES: Final = (16, 32, 64, 128)  # rows of a block, as may be tried
WARPS: Final = (1, 2, 4, 8)  # of a block, as may be tried
KEYS: Final = (128, 64, 32, 16)  # of a step, as may be tried: multiples of `ROWS`
STAGES: Final = (1, 2)  # blocks of keys and values that a block may have at once
# Instructions of a score besides its exponential: scale, mask, maximum, sum, share, rounding.
POINT: Final = 8
MEAN: Final = 3  # instructions that take an element of a block's mean into the mean


class RowTile(NamedTuple):
    """rows: of a block. warps: that share them."""

    rows: int
    warps: int

    @property
    def threads(self) -> Mapping[str, int]:
        """Threads of a block, by axis, the fastest first."""
        axes = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
        return dict(zip(axes, (*QUADS, self.warps), strict=True))

    @property
    def down(self) -> int:
        """Instructions' tiles of a warp, from top to bottom."""
        return self.rows // (ROWS * self.warps)


@dataclass(frozen=True, slots=True)
class FragmentTiling:
    """Attention in tiles. scores, mean: its products."""

    attention: Attention
    tile: RowTile
    scores: TensorTiling
    mean: TensorTiling

    @property
    def reads(self) -> dict[Load, TensorTiling]:
        """The operands in shared memory, each with its product: queries, keys, values."""
        queries, keys, values = self.attention.operands
        return {queries: self.scores, keys: self.scores, values: self.mean}


def fragment_tiling(a: Attention, tile: RowTile) -> FragmentTiling:
    """Attention in these tiles."""
    queries, keys, values = a.operands
    made = a.inner[-1].outputs[0].tensor
    (shares,) = (x for x in a.mean.accesses if x.buffer is made)
    key = a.scores.outputs[0].index[-1]
    scores = _product(a.scores, queries, keys, key)
    (column,) = (
        i for i in a.mean.outputs[0].index if i not in shares.index and _is_wide(a, i)
    )
    mean = _product(a.mean, shares, values, column)
    return FragmentTiling(
        a,
        tile,
        tensor_tiling(scores, TensorTile(tile.rows, a.keys, a.depth, tile.warps, 1)),
        tensor_tiling(
            mean, TensorTile(tile.rows, a.column.extent, a.keys, tile.warps, 1)
        ),
    )


def _is_wide(a: Attention, i: Expr) -> bool:
    return any(d.var is i and d.extent == a.column.extent for d in free_dims(a.mean))


def _product(c: Computation, left: Load, right: Load, column: Expr) -> Product:
    """A product whose rows are an index of the left factor, the last but one."""
    dims: dict[Expr, Dim] = {d.var: d for d in c.dims}
    sides = (dims[left.index[-2]], dims[column])
    return Product(
        reduction=c,
        epilogue=None,
        last=(),
        batch=tuple(d for d in free_dims(c) if d not in sides),
        rows=sides[:1],
        columns=sides[1:],
        sums=tuple(reduction_dims(c)),
        left=left,
        right=right,
    )


def row_layouts(t: FragmentTiling, machine: CudaMachine) -> dict[Load, RowLayout]:
    """The layout of each operand's tile in shared memory."""
    return {read: best_rows(of, read, machine) for read, of in t.reads.items()}


def requests(
    t: FragmentTiling, machine: CudaMachine
) -> dict[Load, tuple[WarpRequest, ...]]:
    """For each operand: fetch its tile, store it, load it into registers. Keys and values: of a
    step; queries: the first two of a block, the last of a step."""
    layouts = row_layouts(t, machine)
    return {
        read: operand_requests(of, read, layouts[read], machine)
        for read, of in t.reads.items()
    }


# -- what fits


def registers(a: Attention, tile: RowTile) -> int:
    """Registers of a thread: its means, and the scores and their exponentials, or the shares and
    the means of a block; the greatest scores and sums; the factors of an instruction."""
    each = tile.down * ROWS / WARP
    means, scores = each * a.column.extent, each * a.keys
    inner = max(2 * scores, scores / 2 + means)
    return math.ceil(means + inner) + (8 + 4) * tile.down + 4 + OWN_REGISTERS


def block_bytes(t: FragmentTiling, machine: CudaMachine, stages: int = 1) -> int:
    """Bytes of a block's shared memory."""
    layouts, total = row_layouts(t, machine), 0
    for n, (read, of) in enumerate(t.reads.items()):
        total += shared_bytes(of.plan, {read: layouts[read].room}, stages if n else 1)
    return total


def together(t: FragmentTiling, machine: CudaMachine, stages: int = 1) -> int:
    """The blocks that a unit runs at once; 0 if it has no room for one."""
    of, threads = machine.simt, t.tile.warps * WARP
    held = registers(t.attention, t.tile)
    if held > of.thread_registers:
        return 0
    return min(
        of.unit_threads // threads,
        of.unit_blocks,
        of.registers // (held * threads),
        of.shared // block_bytes(t, machine, stages),
    )


def stage_counts(t: FragmentTiling, machine: CudaMachine) -> list[int]:
    """How many blocks of keys and values a block may have at once: one where some are skipped."""
    most = 0 if t.attention.skips else t.attention.blocks - 1
    return [n for n in STAGES if n - 1 <= most and together(t, machine, n)]


def best_stages(t: FragmentTiling, machine: CudaMachine) -> int:
    """The number of stages with which attention is expected to be fastest."""
    return min(
        stage_counts(t, machine),
        key=lambda n: time_on_tensor_cores(t, machine, n) or math.inf,
    )


@lru_cache(maxsize=256)
def row_tiles(a: Attention, machine: CudaMachine) -> tuple[RowTile, ...]:
    """The tiles that fit the machine, the fastest expected first."""
    times = {}
    for tile in _possible(a):
        t = fragment_tiling(a, tile)
        if together(t, machine):
            times[tile] = time_on_tensor_cores(t, machine, best_stages(t, machine))
    found = {tile: time for tile, time in times.items() if time is not None}
    return tuple(sorted(found, key=lambda tile: (found[tile], tile)))


def _possible(a: Attention) -> Iterator[RowTile]:
    sizes = (a.keys % ROWS, a.depth % ROWS, a.column.extent % COLUMNS)
    if any(sizes):
        return
    for rows in TILES:
        for warps in WARPS:
            if rows % (ROWS * warps) == 0:
                yield RowTile(rows, warps)


# -- time


def time_on_tensor_cores(
    t: FragmentTiling, machine: CudaMachine, stages: int = 1
) -> float | None:
    """Nanoseconds of all of it in these tiles; None if they do not fit the machine."""
    of, a = machine.simt, t.attention
    at_once = together(t, machine, stages)
    if at_once == 0:
        return None
    around = math.prod(d.extent for d in a.around)
    waves = math.ceil(around * math.ceil(a.row.extent / t.tile.rows) / of.units)
    running = min(at_once, waves)
    step = _step(t, machine, running)
    read = a.blocks * seen_share(a.online, t.tile.rows)
    if stages > 1 and arrive_later(t.reads, row_layouts(t, machine), machine):
        arriving = LATENCY / (running * (stages - 1))
        steps = read * (max(step, arriving) + SYNC / running) + LATENCY / running
    else:
        steps = read * (step + (LATENCY + 2 * SYNC) / running)
    return waves * (steps + LATENCY / running) + of.launch_ns


def _step(t: FragmentTiling, machine: CudaMachine, running: int) -> float:
    """Nanoseconds of a block of keys, of several that a unit runs together, without waits."""
    of, a = machine.simt, t.attention
    queries, *_ = t.reads
    moved = turns = issued = 0
    for read, (fetched, stored, loaded) in requests(t, machine).items():
        inner = [loaded] if read is queries else [stored, loaded]
        turns += sum(r.requests * r.turns for r in inner)
        issued += sum(r.requests for r in inner)
        if read is not queries:
            moved += fetched.requests * fetched.turns * SECTOR
            issued += fetched.requests
    scores, means = t.tile.rows * a.keys, t.tile.rows * a.column.extent
    issued += t.scores.products + t.mean.products
    points = (EXPONENTIAL + POINT) * scores + MEAN * means
    size = queries.dtype.itemsize
    busy = min(1.0, running * t.tile.warps / FEEDING)
    products = scores * (a.depth + a.column.extent)
    return max(
        products / (machine.tensor_rate(size) * busy),
        (issued * WARP + points) / of.rate,
        turns_time(turns, machine),
        moved * of.units / of.cache_bandwidth,
    )
