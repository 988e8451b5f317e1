"""The cost of reductions along rows on a SIMT machine, and how many threads share a row.

The time is the largest of three bounds: memory, arithmetic, and the time of one block times the
rounds of blocks that the units need. The constants are typical of such devices, not measured on
one; they only have to rank schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log2
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.targets.simt.cost import GAIN
from tilewright.targets.simt.machine import OWN_BYTES, SimtMachine

# Of one element after another in a thread: a load that others overlap.
STEP_NS: Final = 8.0
# Of a level of a tree through shared memory, all threads meeting.
BARRIER_NS: Final = 25.0
SHUFFLE_NS: Final = 8.0  # of a level within a warp
# Of a barrier by each thread, where threads are iterations of a loop.
SWITCH_NS: Final = 4.0
SECTOR: Final = 32  # bytes that memory hands out at least
# Nanoseconds until the blocks of a cluster know that all have come to a barrier. An assumption: a
# few times what a barrier of one block takes. No source for it was found, and it is not measured.
CLUSTER_SYNC: Final = 100.0
LANES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # that may share a row
PART: Final = 8  # rounds of a block: fewer are not worth a launch
TREE_BYTES: Final = 16  # of shared memory that a thread's part of a tree takes at most


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to reduce. count, width: how many, of how many elements; itemsize: of an element, in
    bytes; passes: Computations over a row, of which `reductions` are trees. between: bytes of the
    longest row between two of them."""

    count: int
    width: int
    itemsize: int
    passes: int
    machine: SimtMachine
    reductions: int = 1
    between: int = 0

    @property
    def most_threads(self) -> int:
        """The most threads of a block: limited by the machine, and by shared memory for their
        parts."""
        held = self.machine.shared // self.tree_bytes
        return max(1, min(self.machine.block_threads, held))

    @property
    def tree_bytes(self) -> int:
        """Shared bytes per thread of a block: its parts of all reductions."""
        return TREE_BYTES * self.passes

    @property
    def most_words(self) -> int:
        """Elements of its row that a thread may keep: half of its registers."""
        return self.machine.thread_registers // max(2, self.itemsize // 2)


def lane_counts(rows: Rows) -> list[int]:
    """How many threads may share a row: powers of two up to its width and to a block.

    Not one that would have to hold more between Computations than a thread has for itself.
    """
    most = min(rows.most_threads, 2 * rows.width)
    least = 1 if rows.between <= OWN_BYTES else 2
    return [n for n in LANES if least <= n <= max(1, most)]


def usual_lanes(rows: Rows) -> int:
    """The count of threads of a row that costs least."""
    return min(lane_counts(rows), key=lambda lanes: (cost_ns(rows, lanes), lanes))


def rows_in_block(rows: Rows, lanes: int, taken: int = 0) -> tuple[int, list[int]]:
    """The default rows of a block, enough for a usual number of threads, and all possible numbers.

    taken: bytes of shared memory per row besides the partial results of reductions.
    """
    most = min(rows.most_threads // lanes, rows.count)
    if taken:
        most = min(most, rows.machine.shared // (taken + rows.tree_bytes * lanes))
    possible = [n for n in LANES if n <= max(1, most)]
    usual = [n for n in possible if n * lanes <= rows.machine.usual_threads]
    return max(usual, default=1), possible


def cost_ns(rows: Rows, lanes: int) -> float:
    """Nanoseconds of all rows with `lanes` threads each."""
    m = rows.machine
    together, _ = rows_in_block(rows, lanes)
    threads = together * lanes
    at_once = m.units * max(1, min(m.unit_blocks, m.unit_threads // threads))
    rounds = ceil(ceil(rows.count / together) / at_once)
    steps = rows.passes * ceil(rows.width / lanes) * STEP_NS
    block = steps + rows.reductions * _tree_ns(m, lanes)
    points = rows.count * rows.width * rows.passes
    work = points / (m.units * m.rate)
    if not m.shared_pays:
        meetings = rows.count * rows.reductions * lanes * barriers(m, lanes)
        work += meetings * SWITCH_NS / m.units
    return m.launch_ns + max(_memory_ns(rows, lanes), work, rounds * block)


def usual_blocks(rows: Rows, lanes: int, possible: Sequence[int]) -> int:
    """The count of blocks of a cluster that share a row, of so many threads each: one, unless
    others are expected to be faster by a tenth."""
    best = min(possible, key=lambda n: (cluster_ns(rows, lanes, n), n))
    expected = GAIN * cluster_ns(rows, lanes, best)
    return best if expected <= cost_ns(rows, lanes) else 1


def cluster_ns(rows: Rows, lanes: int, blocks: int) -> float:
    """Nanoseconds of all rows, each by so many blocks with `lanes` threads each."""
    if blocks == 1:
        return cost_ns(rows, lanes)
    count = rows.count * blocks
    parts = replace(rows, count=count, width=ceil(rows.width / blocks))
    meetings = cluster_meetings(rows) * CLUSTER_SYNC
    loads = peer_loads(rows, blocks) * STEP_NS
    return cost_ns(parts, lanes) + meetings + loads


def cluster_meetings(rows: Rows) -> int:
    """How often the blocks that share a row meet: for each reduction, and before they end."""
    return rows.reductions + 1


def peer_loads(rows: Rows, blocks: int) -> int:
    """How often a thread loads from shared memory of the blocks that share its row."""
    return rows.reductions * blocks


def barriers(m: SimtMachine, lanes: int) -> int:
    """How often the threads of a row meet for a tree: once its parts are in shared memory, which
    warps have made by exchanging registers, and after each level there."""
    warps = lanes // min(lanes, m.warp)
    return 0 if warps == 1 else 1 + int(log2(warps))


def _tree_ns(m: SimtMachine, lanes: int) -> float:
    within = min(lanes, m.warp)
    return log2(within) * SHUFFLE_NS + barriers(m, lanes) * BARRIER_NS


def _memory_ns(rows: Rows, lanes: int) -> float:
    """Nanoseconds to read all bytes once."""
    return read_bytes(rows, lanes) / rows.machine.bandwidth


def read_bytes(rows: Rows, lanes: int) -> int:
    """Bytes of the device's memory that reading all rows once moves: whole sectors, of which
    neighboring threads in different rows use one each."""
    size = rows.count * rows.width * rows.itemsize
    run = lanes * rows.itemsize
    waste = max(1.0, SECTOR / run) if rows.machine.shared_pays else 1.0
    return int(size * waste)


def part_counts(m: SimtMachine, width: int, threads: int) -> tuple[int, list[int]]:
    """The default number of blocks that share a reduction, and all possible ones.

    Several if each has at least PART rounds of its threads; no more than run at once.
    """
    most = m.units * max(1, min(m.unit_blocks, m.unit_threads // threads))
    possible = [n for n in LANES if n <= min(most, max(1, width // threads))]
    usual = [n for n in possible if n * PART * threads <= width]
    return max(usual, default=1), possible
