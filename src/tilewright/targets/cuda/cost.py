"""What a product takes on tensor cores: closed forms, and which tiles are expected to be fastest.

A step of a block takes as long as the slowest of: the tensor cores, instructions that are issued,
turns of shared memory, bytes from the device's memory; then the waits that other blocks of the unit
do not hide. With n tiles of each factor, asynchronous copies have n - 1 steps to arrive; one less
where units of several warps overlap steps, and nothing waits for these then. Blocks of a cluster
read what they share once, and come to a barrier in each step before they copy. Rates are NVIDIA's
of an A100 (`machine.py`), and have not been measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from tilewright.base.numbers import ceil_div
from tilewright.expr.nodes import Const, Expr, Load, Select
from tilewright.expr.swizzle import BLOCK, swizzled
from tilewright.ir.node import postorder
from tilewright.loops.passes.async_copies import BYTES, copied
from tilewright.loops.passes.block_memory import ring_bytes
from tilewright.loops.passes.shared_room import room_for
from tilewright.targets.cuda.intrinsics import MATRIX_ROW, matrix_loads
from tilewright.targets.cuda.machine import WARP, CudaMachine
from tilewright.targets.cuda.tensor_tiling import (
    ONE_BLOCK,
    ClusterShape,
    RowLayout,
    TensorTile,
    TensorTiling,
    tensor_tiling,
)
from tilewright.targets.cuda.tensor_units import TensorUnit
from tilewright.targets.simt.cost import (
    LATENCY,
    OWN_REGISTERS,
    SECTOR,
    STAGES,
    SYNC,
    WORD,
    WarpRequest,
    bank_turns,
    copies,
    fetch_width,
    shared_bytes,
    tile_steps,
)
from tilewright.targets.simt.products import Product
from tilewright.targets.simt.row_cost import CLUSTER_SYNC

FEEDING: Final = 4  # warps that keep the tensor cores of a unit busy: it has four
# Instructions that put two elements in a word, of a factor whose neighbors along the sum are apart.
PACKING: Final = 2
# Instructions that find where a chunk of a swizzled tile is stored: the row's bits are known.
SWIZZLING: Final = 2
# Instructions of one thread that copy a box: its place, its bytes, and the copy. That units which
# copy take as long for a box as for the same bytes in smaller pieces is not measured.
BOX_INSTRUCTIONS: Final = 8
PADDINGS: Final = (0, 8, 16)  # bytes between rows of a factor's tile that may be tried
MATRIX_ROWS: Final = 8  # that one turn of `ldmatrix` reads


# -- requests of shared memory


def operand_requests(
    t: TensorTiling, read: Load, rows: RowLayout, machine: CudaMachine
) -> tuple[WarpRequest, ...]:
    """A step's requests for one factor: fetch its tile, store it, load it into registers."""
    swizzle = _swizzle(t, read, rows)
    copied = copies(t.plan, read, rows.room, machine.simt, swizzle)
    return (*copied, fragment_request(t, read, rows, machine))


def fragment_request(
    t: TensorTiling, read: Load, rows: RowLayout, machine: CudaMachine
) -> WarpRequest:
    """The loads of a factor into registers, as `emit_mma` has them: each once by each warp.

    Matrices where rows are whole and aligned; else words of 32 bits where neighbors along the sum
    are neighbors in the tile; else single elements. A unit of several warps reads memory itself.
    """
    p, size = t.plan.product, read.dtype.itemsize
    if t.unit.threads > WARP:
        side = t.unit.rows if read is p.left else t.unit.columns
        return WarpRequest("shared", t.units, side * t.unit.depth // BLOCK)
    down, across = t.mine
    parts, words = (down, 4) if read is p.left else (across, 2)
    strides = factor_strides(t, read, rows.room)
    by_matrix = matrix_loads(size, strides)
    banks = machine.simt.banks
    if by_matrix is not None:
        swizzle, pitch = _swizzle(t, read, rows), by_matrix.pitch * size
        starts = [swizzled(n * pitch, swizzle) for n in range(MATRIX_ROWS)]
        turns, words = words * bank_turns(starts, banks, MATRIX_ROW), 1
    else:
        beside, along = strides
        lanes = [size * beside * (n // 4) + WORD * along * (n % 4) for n in range(WARP)]
        turns, words = bank_turns(lanes, banks), words * _loads(t, read, rows.room)
    count = t.warps * parts * words * (t.tile.depth // t.factor)
    return WarpRequest("shared", count, turns)


def factor_strides(t: TensorTiling, read: Load, room: int) -> tuple[int, int]:
    """Elements in a factor's tile between neighbors on its side, and along the sum."""
    p = t.plan.product
    side = p.rows[-1] if read is p.left else p.columns[0]
    steps = tile_steps(t.plan, read, room)
    return steps[side.var], steps[t.along.var]


def _loads(t: TensorTiling, read: Load, room: int) -> int:
    """How many loads a word of a factor takes at most."""
    size, strides = read.dtype.itemsize, factor_strides(t, read, room)
    per = WORD // size
    is_word = strides[1] == 1 and strides[0] % per == 0
    return 1 if is_word or matrix_loads(size, strides) is not None else per


def result_requests(
    t: TensorTiling, machine: CudaMachine, persists: bool = False
) -> tuple[WarpRequest, WarpRequest]:
    """Requests for a block's results: each warp stores its own in shared memory, then all threads
    load adjacent ones."""
    down_by, across_by = t.result_steps(persists)
    lanes = [WORD * (down_by * (n // 4) + across_by * 2 * (n % 4)) for n in range(WARP)]
    stored = loaded = t.tile.rows * t.tile.columns // WARP
    banks = machine.simt.banks
    size, room = t.part_row(persists)
    read = [WORD * (n // size * (size + room) + n % size) for n in range(WARP)]
    return (
        WarpRequest("shared", stored, bank_turns(lanes, banks)),
        WarpRequest("shared", loaded, bank_turns(read, banks)),
    )


def _swizzle(t: TensorTiling, read: Load, rows: RowLayout) -> int:
    """The bytes of a row of a swizzled tile, as its buffer has them; 0 if it is not swizzled."""
    if t.unit.threads > WARP:
        return t.unit.depth
    row = t.plan.box(read)[-1] * read.dtype.itemsize
    return max(row, BLOCK) if rows.is_swizzled else 0


def row_layouts(t: TensorTiling, read: Load) -> list[RowLayout]:
    """How the rows of a factor's tile may be laid out: swizzled too if `ldmatrix` loads them. For a
    unit of several warps they have to be."""
    if t.unit.threads > WARP:
        return [RowLayout(0, True)]
    size, box = read.dtype.itemsize, t.plan.box(read)
    row = box[-1] * size
    found = [RowLayout(n // size) for n in PADDINGS]
    is_even = (
        row >= MATRIX_ROW
        and row & (row - 1) == 0
        and math.prod(box) * size % BLOCK == 0
    )
    if is_even and matrix_loads(size, factor_strides(t, read, 0)) is not None:
        found.append(RowLayout(0, True))
    return found


def best_rows(t: TensorTiling, read: Load, machine: CudaMachine) -> RowLayout:
    """The layout of a factor's tile that takes the fewest turns and requests, and of such the least
    memory."""

    def asked(rows: RowLayout) -> tuple[int, int, int]:
        found = operand_requests(t, read, rows, machine)
        inner = [r for r in found if r.memory == "shared"]
        turns = sum(r.requests * r.turns for r in inner)
        return turns, sum(r.requests for r in found), rows.room

    return min(row_layouts(t, read), key=asked)


# -- time


def block_bytes(
    t: TensorTiling,
    held: Mapping[Load, RowLayout],
    machine: CudaMachine,
    stages: int = 1,
    in_boxes: bool = False,
    persists: bool = False,
) -> int:
    """Bytes of a block's shared memory at most: both factors' tiles and the results, which may
    share room (`loops/passes/shared_room.py`), and the mbarriers of boxes, one for each stage.

    persists: a block has the tiles of its next results while it stores a part of these.
    """
    rooms = {read: rows.room for read, rows in held.items()}
    tiles = shared_bytes(t.plan, rooms, stages)
    ring = ring_bytes(stages if in_boxes else 0)
    size, room = t.part_row(persists)
    rows = t.tile.rows * t.tile.columns // (size * t.parts(persists))
    results = rows * (size + room) * WORD
    if persists:
        return tiles + room_for(results) + ring
    own = machine.simt.own_room * t.warps * WARP
    buffers = tiles + results if tiles + results <= own else max(tiles, results)
    return buffers + ring


def factor_rows(t: TensorTiling, machine: CudaMachine) -> dict[Load, RowLayout]:
    """The default layout of each factor's tile."""
    return dict(_rows(t.plan.product, t.tile, t.unit, machine))


@lru_cache(maxsize=256)
def _rows(
    p: Product, tile: TensorTile, unit: TensorUnit, machine: CudaMachine
) -> tuple[tuple[Load, RowLayout], ...]:
    t = tensor_tiling(p, tile, unit)
    return tuple((x, best_rows(t, x, machine)) for x in (p.left, p.right))


@lru_cache(maxsize=256)
def _asked(
    p: Product, tile: TensorTile, unit: TensorUnit, machine: CudaMachine
) -> tuple[tuple[Load, RowLayout, tuple[WarpRequest, ...]], ...]:
    """The default layout of each factor's tile, and a step's requests for it."""
    t = tensor_tiling(p, tile, unit)
    rows = _rows(p, tile, unit, machine)
    return tuple((x, held, operand_requests(t, x, held, machine)) for x, held in rows)


def registers(t: TensorTiling) -> int:
    """Registers of a thread: its results, and the factors of one step along the sum."""
    results = t.tile.rows * t.tile.columns // (t.warps * WARP)
    if t.unit.threads > WARP:
        return results + OWN_REGISTERS
    down, across = t.mine
    return results + 4 * down + 2 * across + OWN_REGISTERS


def stage_counts(
    t: TensorTiling,
    machine: CudaMachine,
    in_boxes: bool = False,
    persists: bool = False,
) -> list[int]:
    """How many tiles of a factor a block may have at once; several, if it persists."""
    found = [n for n in STAGES[1:] if t.plan.steps >= n]
    found = [n for n in found if together(t, machine, n, in_boxes, persists)]
    return found if persists else [1, *found]


def spare_tiles(t: TensorTiling, stages: int) -> int:
    """How many of a block's tiles of a factor units may still read while the next step begins: with
    three or more, units of several warps overlap steps."""
    return int(t.unit.threads > WARP and stages > 2)


def best_stages(
    t: TensorTiling,
    machine: CudaMachine,
    in_boxes: bool = False,
    cluster: ClusterShape = ONE_BLOCK,
    persists: bool = False,
) -> int:
    """The number of stages with which a product is expected to be fastest."""

    def time(stages: int) -> float:
        how = stages, in_boxes, cluster, persists
        return time_on_tensor_cores(t, machine, *how) or math.inf

    return min(stage_counts(t, machine, in_boxes, persists), key=time)


def _arrive_later(t: TensorTiling, machine: CudaMachine) -> bool:
    reads = dict.fromkeys((t.plan.product.left, t.plan.product.right), t)
    return arrive_later(reads, factor_rows(t, machine), machine)


def arrive_later(
    reads: Mapping[Load, TensorTiling],
    held: Mapping[Load, RowLayout],
    machine: CudaMachine,
) -> bool:
    """Whether all factors' tiles can be copied asynchronously: padding has to be zeros."""
    if not all(_is_copied(t, x) for x, t in reads.items()):
        return False
    widths = {x: copy_width(t, x, held[x], machine) for x, t in reads.items()}
    return all(n > 1 and n * x.dtype.itemsize in BYTES for x, n in widths.items())


def padded_read(value: Expr) -> Load | None:
    """What is read, of a read or of one with a constant where a condition does not hold."""
    if isinstance(value, Select) and isinstance(value.otherwise, Const):
        value = value.then
    return value if isinstance(value, Load) else None


def _is_copied(t: TensorTiling, read: Load) -> bool:
    """Whether a factor is read as it is, or is zero where a condition does not hold."""
    values = postorder(t.plan.product.reduction.outputs[0].value)
    selects = (e for e in values if isinstance(e, Select) and e.then is read)
    return all(copied(e) is read for e in selects)


def copy_width(
    t: TensorTiling, read: Load, rows: RowLayout, machine: CudaMachine
) -> int:
    """Neighboring elements of a factor's tile that a thread copies at once."""
    return fetch_width(t.plan, read, rows.room, machine.simt)


def together(
    t: TensorTiling,
    machine: CudaMachine,
    stages: int = 1,
    in_boxes: bool = False,
    persists: bool = False,
) -> int:
    """The blocks that a unit runs at once; 0 if it has no room for one."""
    of, threads = machine.simt, t.warps * WARP
    held = factor_rows(t, machine)
    shared = block_bytes(t, held, machine, stages, in_boxes, persists)
    if registers(t) > of.thread_registers or threads > of.block_threads:
        return 0
    return min(
        of.unit_threads // threads,
        of.unit_blocks,
        of.registers // (registers(t) * threads),
        of.shared // shared,
    )


def boxes_pay(t: TensorTiling, machine: CudaMachine) -> bool:
    """Whether a product is expected to be no slower if one thread copies its tiles: other threads
    have fewer registers and instructions then."""
    usual, other = (
        time_on_tensor_cores(t, machine, best_stages(t, machine, in_boxes), in_boxes)
        or math.inf
        for in_boxes in (False, True)
    )
    return other <= usual


def time_on_tensor_cores(
    t: TensorTiling,
    machine: CudaMachine,
    stages: int = 1,
    in_boxes: bool = False,
    cluster: ClusterShape = ONE_BLOCK,
    persists: bool = False,
) -> float | None:
    """Nanoseconds of a product in these tiles; None if they do not fit the machine.

    in_boxes: one thread copies the factors' tiles, each by one instruction. cluster: blocks that
    share these. persists: a block computes one tile of results after another.
    """
    of = machine.simt
    held = together(t, machine, stages, in_boxes, persists)
    units = of.units // cluster.blocks * cluster.blocks
    if held == 0 or units == 0:
        return None
    waves = ceil_div(t.plan.blocks, units)
    running = min(held, waves)
    meeting = CLUSTER_SYNC if cluster.blocks > 1 else 0.0
    requests = result_requests(t, machine, persists)
    stored = turns_time(sum(r.requests * r.turns for r in requests), machine)
    spare = spare_tiles(t, stages)
    step = _step(t, machine, running, in_boxes, cluster)
    if not spare:
        step += _waits(t, running) + meeting / running
    if stages > 1 and (in_boxes or _arrive_later(t, machine)):
        arriving = (LATENCY + meeting) / (running * (stages - 1 - spare))
        block = t.plan.steps * (max(step, arriving) + SYNC / running)
        first = LATENCY / running  # of the first tiles
    else:
        block = t.plan.steps * (step + (LATENCY + 2 * SYNC) / running)
        first = 0.0
    if persists:  # the next results' first tiles arrive while these are stored
        stored += 2 * SYNC * t.parts(True) / running
        total = first + (waves - 1) * (block + max(first, stored)) + block + stored
    else:
        total = waves * (first + block + stored)
    return float(total + of.launch_ns)


def _step(
    t: TensorTiling,
    machine: CudaMachine,
    running: int,
    in_boxes: bool,
    cluster: ClusterShape,
) -> float:
    """Nanoseconds of a step of a block, of several that a unit runs together, without waits."""
    of = machine.simt
    moved = 0.0
    turns = issued = 0
    for read, rows, found in _asked(t.plan.product, t.tile, t.unit, machine):
        fetched, *inner = found
        sharing = cluster.columns if read is t.plan.product.left else cluster.rows
        moved += fetched.requests * fetched.turns * SECTOR / sharing
        turns += sum(r.requests * r.turns for r in inner)
        each = PACKING if _loads(t, read, rows.room) > 1 else 0
        each += SWIZZLING if rows.is_swizzled else 0
        if in_boxes:
            issued += BOX_INSTRUCTIONS
        else:
            issued += sum(r.requests for r in found) + each * inner[-1].requests
    size = t.plan.product.left.dtype.itemsize
    busy = min(1.0, running * t.warps / FEEDING)
    rate = machine.tensor_rate(size) * t.unit.rate * busy
    products = math.prod(t.plan.sizes.values()) / rate
    issue = (issued + t.products) * WARP / of.rate
    outer = moved * of.units / of.cache_bandwidth
    return max(products, issue, turns_time(turns, machine), outer)


def _waits(t: TensorTiling, running: int) -> float:
    """Nanoseconds of a step in which threads wait for units that do not hide one another."""
    down, across = t.mine
    teams = t.tile.row_warps * t.tile.column_warps
    return t.unit.wait_ns * down * across / (running * teams)


def turns_time(turns: int, machine: CudaMachine) -> float:
    """Nanoseconds of turns of a unit's shared memory."""
    of = machine.simt
    return turns * of.banks * WORD / of.shared_rate
