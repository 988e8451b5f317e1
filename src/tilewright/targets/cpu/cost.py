"""The costs of schedules on a CPU: every constant, and the estimates that several sketches use.

`constants()` lists the constants with their units, meanings and sources. A machine description may
carry other values (`CpuMachine.measured`); CALIBRATE measures those whose source it is. The others
were set by hand: SWEEP times the kernels that each decides about, under several values of it, and
RANGES compares code for a range of shapes with code for each of them. What the processor itself is
(caches, lines, registers) is in `machine.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Var
from tilewright.ir.node import postorder
from tilewright.plan.questions import OpenCosts, PlanCosts
from tilewright.targets.cpu.kernel_costs import PREDICTIONS, KernelCosts
from tilewright.targets.cpu.kernel_costs import constant as _constant
from tilewright.targets.cpu.machine import CpuMachine

CALIBRATE: Final = "python -m benchmarks.calibrate"
SWEEP: Final = "python -m benchmarks.sweep"


@dataclass(frozen=True, slots=True)
class Constant:
    """A cost constant: its default value, whether it is an integer, its unit, its meaning, and the
    command that measures it or shows its effect."""

    name: str
    value: float
    whole: bool
    unit: str
    meaning: str
    source: str


@dataclass(frozen=True, slots=True)
class CostModel(KernelCosts):
    """The constants of cost of one machine; sizes in bytes, cycles of one core.

    Those of single kinds of kernels are in `kernel_costs.py`.
    """

    machine: CpuMachine

    # Threads. A rate says how long one core takes, with its data in the caches of all cores.
    share_ns: float = _constant(
        10_000, "ns", "a kernel that takes one core less runs on one thread", CALIBRATE
    )
    product_ns: float = _constant(
        10_000 / 1_000_000, "ns", "a multiply-add of a tiled reduction", CALIBRATE
    )
    point_ns: float = _constant(
        10_000 / 65_536, "ns", "one operation on one element, in vectors"
    )
    step_ns: float = _constant(
        10_000 / 32_768,
        "ns",
        "an element that takes more: in another order, in an operator's own kernel",
    )
    given_product_ns: float = _constant(
        10_000 / (1 << 18),
        "ns",
        "a multiply-add there, whose weights are read each time",
    )
    given_rows: int = _constant(4, "rows", "of a tile of such a product")
    given_lanes: int = _constant(16, "elements", "of a vector of such a tile")
    passed_ns: float = _constant(
        10_000 / 131_072,
        "ns",
        "an element that is copied or summed in the order of memory",
    )
    byte_ns: float = _constant(
        10_000 / (1 << 18), "ns", "a byte of data that other cores made or will read"
    )
    constant_byte_ns: float = _constant(
        10_000 / (1 << 19), "ns", "a byte of read-only data"
    )
    call_operations: int = _constant(
        4, "operations", "a division or a function counts as so many more"
    )
    call_ns: float = _constant(
        100, "ns", "a kernel takes besides its work", "python -m benchmarks.fork_join"
    )
    region_ns: float = _constant(
        1_000,
        "ns",
        "the threads of a kernel take to start and to wait for the last of them",
        "python -m benchmarks.fork_join",
    )
    shares: int = _constant(
        4, "iterations per core", "enough for a number that the cores do not divide"
    )
    uneven: float = _constant(
        0.02,
        "of a kernel's time",
        "that a core may wait for the others before more loops are shared",
    )
    blocks: int = _constant(
        2, "blocks per core", "at least, where results are computed in blocks"
    )
    shared_vectors: int = _constant(
        64, "vectors", "a single loop has at least so many if threads share it"
    )
    chunk_vectors: int = _constant(16, "vectors", "of such a loop in one iteration")

    # Caches.
    l1_way: int = _constant(
        4096, "bytes", "a way of the first cache: found by the offset in a page"
    )
    l2_ways: int = _constant(
        8, "ways", "of the second cache, at least: 8 of Zen's, 16 of Intel's servers"
    )
    full: float = _constant(
        0.8, "of a cache", "what one operand may fill of the second cache and stay"
    )
    l1_full: float = _constant(
        0.7, "of a cache", "what one operand may fill of the first cache and stay"
    )
    far_weight: float = _constant(
        3.0,
        "times",
        "traffic from beyond the second cache costs, compared with that from it",
    )
    half: int = _constant(
        2, "parts of a cache", "one of them is for what a tile or a row uses again"
    )
    quarter: int = _constant(
        4,
        "parts of a cache",
        "one of them is for the results that a block reads, or for a row that is read again",
    )
    large: int = _constant(
        4, "second caches", "larger data comes from beyond it, wherever it was made"
    )
    in_place: int = _constant(
        2, "second caches", "lines of a larger result come from memory to be written"
    )
    streamed: int = _constant(
        32 << 20, "bytes", "a result of more is not worth its place in any cache"
    )
    stack: int = _constant(
        16_384, "bytes", "of an intermediate result; larger ones go to the workspace"
    )
    spilled: int = _constant(
        4,
        "register files",
        "of an array with constant indices on the stack, at most: a larger one is in memory anyway",
    )
    second_bytes: float = _constant(
        32, "bytes per cycle", "that one core reads from the second cache", CALIBRATE
    )
    far_bytes: float = _constant(
        8,
        "bytes per cycle",
        "that one core reads from beyond the second cache",
        CALIBRATE,
    )
    third_bytes: float = _constant(
        16,
        "bytes per cycle",
        "that one core reads and writes in the last cache",
        PREDICTIONS,
    )
    # A third of what a core takes that gets 10 bytes per cycle.
    far_byte: float = _constant(
        1 / 32,
        "cycles",
        "a byte of columns from beyond it, partly hidden by arithmetic",
        CALIBRATE,
    )
    # Nothing foresees such a piece, and a page that was not used lately is looked up first: what a
    # dilated convolution of 2048 channels took per channel and row of its window on a Zen 4.
    far_piece: float = _constant(
        16.0, "cycles", "a piece of memory with a gap before it, from beyond it"
    )
    far_speed: float = _constant(
        0.9, "of the speed", "is left where columns come from beyond it"
    )

    # Register tiles: what one step of the reduction takes.
    multiply_adds: float = _constant(
        2, "per cycle", "vector multiply-adds that issue, at most"
    )
    # Zen 4 has two pipes of 32 bytes; servers of Intel's, which have two of 64, are calibrated.
    multiplied: float = _constant(
        64, "bytes per cycle", "of vectors that multiply-adds take", CALIBRATE
    )
    dot_products: float = _constant(1, "per cycle", "vector dot products that issue")
    tile_least: float = _constant(10, "cycles", "a product of tiles (AMX), at least")
    tile_far: float = _constant(2, "cycles", "a line of tiles from the second cache")
    tile_result: float = _constant(32, "cycles", "a tile of results made and stored")
    loads: float = _constant(1.8, "per cycle", "vector loads that issue")
    # Of a Zen 4: 4, and tiles that have just as many accumulators as that takes lose a tenth.
    latency: float = _constant(
        4.4,
        "cycles",
        "from a multiply-add to the next one of its accumulator",
        CALIBRATE,
    )
    # What a Zen 4 keeps until it is done; others keep 224 (Skylake) to 512 (Golden Cove). Of tiles
    # with fewer, one's products hide another's stores.
    begun: int = _constant(
        320,
        "instructions",
        "that a core begins before the first of them is done",
    )
    broadcast: float = _constant(
        0.1,
        "cycles",
        "an element of a row from the first cache, on top of the arithmetic",
    )
    far_broadcast: float = _constant(
        0.5, "cycles", "one of rows that displace one another there, not hidden"
    )
    lost_line: float = _constant(
        5.0,
        "cycles",
        "a line that is fetched ahead and displaced before it is read, not hidden",
    )
    # The default keeps the choices that were timed on a Zen 4.
    lost_result: float = _constant(
        0.1,
        "cycles",
        "a line of results that other cores read, if others displace it, not hidden",
    )
    # Of depthwise convolutions of 1024 channels in tiles of one, two and four vectors: 5.5, 7 and 4
    # cycles a piece on a Zen 4. Set by code for x86-64-v3 on a Zen 5.
    lost_piece: float = _constant(
        12.0, "cycles", "a piece of a row whose lines others displace, not hidden"
    )
    beside: float = _constant(
        0.25,
        "cycles",
        "a vector that a row or a transform moves, on top of its arithmetic",
    )
    column_vector: float = _constant(
        0.5, "cycles", "a vector of columns, which the second cache keeps"
    )
    exposed: float = _constant(
        0.25, "of the cycles", "of loads and the loop, that arithmetic does not hide"
    )
    stored: float = _constant(
        0.9, "cycles", "a store of results, or another step by which they leave a tile"
    )
    better: float = _constant(
        1.05, "times the speed", "is needed before results are transposed"
    )
    tile_rows: int = _constant(28, "rows", "of a register tile, at most")
    tile_vectors: int = _constant(8, "vectors", "of a row of a register tile, at most")
    tile_registers: int = _constant(1, "register", "besides those of a tile's rows")
    # Of depthwise convolutions of 3x3: 6% to 14% faster than rows side by side alone, on a Zen 4.
    # Those of 5x5 hide the same behind more products.
    rows_above: int = _constant(
        2, "rows", "of a tile above one another, at most, whose windows overlap"
    )
    results_above: int = _constant(
        8, "vectors", "of results of such a tile, at most: more displace one another"
    )
    hidden_fills: float = _constant(
        0.4,
        "of the cycles",
        "of products, in which the first cache gets what they read, unnoticed",
    )
    taps: int = _constant(8, "steps", "of a window that are written out, at most")
    few_steps: int = _constant(
        4, "steps", "of a sum without products that is written out whole, at most"
    )
    written: int = _constant(
        1, "steps", "of a sum of products in a register tile that are written out"
    )

    def multiply_rate(self, lanes: int, itemsize: int) -> float:
        """Multiply-adds per cycle, with vectors of this many elements of this many bytes."""
        register = 1 << (lanes * itemsize - 1).bit_length()
        return min(self.multiply_adds, self.multiplied / register)

    def products(self, lanes: int, itemsize: int) -> float:
        """Products per cycle, with such vectors."""
        return self.multiply_rate(lanes, itemsize) * lanes

    @property
    def plan(self) -> PlanCosts:
        """The constants that passes over a plan decide by."""
        asked = [f.name for f in fields(PlanCosts) if f.default is MISSING]
        return PlanCosts(**{name: getattr(self, name) for name in asked})

    @property
    def moved_ns(self) -> float:
        """Nanoseconds that a copy takes per element, as if one core did it: all of them share the
        memory."""
        return self.moved_element_ns * self.machine.cores

    @property
    def group_ns(self) -> float:
        """Nanoseconds that a kernel takes, on all cores together, if each core has as much to do as
        makes one core share its work."""
        return self.share_ns * self.machine.cores

    @property
    def near(self) -> int:
        """Bytes that the second cache has."""
        return self.machine.l2

    @property
    def kept(self) -> int:
        """Bytes that the second cache keeps beside others."""
        return int(self.full * self.machine.l2)

    @property
    def nearest(self) -> int:
        """Bytes that the first cache keeps."""
        return self.machine.l1

    @property
    def near_ns(self) -> float:
        """Nanoseconds that are left to wait for a byte from the second cache."""
        return self.exposed_traffic / (self.second_bytes * self.machine.clock)

    @property
    def far_ns(self) -> float:
        """Nanoseconds to wait for a byte of weights from the last cache: no arithmetic hides it."""
        return 1 / (self.third_bytes * self.machine.clock)

    @property
    def cores(self) -> int:
        """Those of the machine."""
        return self.machine.cores

    @property
    def open(self) -> OpenCosts:
        """The constants that kernels of an open plan are divided by."""
        return OpenCosts(**{f.name: getattr(self, f.name) for f in fields(OpenCosts)})

    @property
    def guarded(self) -> float:
        """Vectors that are read under guards in the time of one that is copied with its padding;
        0 where lanes are read one by one."""
        m = self.machine
        if m.has("avx512f"):
            return self.masked_reads
        return self.guarded_reads if m.has("avx2") else 0.0

    def worth_sharing(self, nanoseconds: float) -> bool:
        """Whether work that takes one core so long is worth waking the other threads."""
        return nanoseconds >= self.share_ns

    def moving(
        self,
        buffers: Iterable[Buffer],
        constants: Collection[Buffer],
        of: Computation | None = None,
    ) -> float:
        """Nanoseconds to move the data of these buffers from all cores to one, or back.

        Data is in the caches of the cores that produced it: a single core must fetch most of it
        from the others, and they must fetch its results. of: what alone accesses them, such as a
        border or a few rows of a table; the rest of a buffer stays where it is.
        """
        taken = 0.0
        most = None if of is None else _accessed(of)
        for b in buffers:
            rate = self.constant_byte_ns if b in constants else self.byte_ns
            count = b.size if most is None else min(b.size, most.get(b.name, 0))
            taken += count * b.dtype.itemsize * rate
        return taken

    def arriving(self, size: float) -> float:
        """Bytes per cycle that arrive at a core from the cache that holds so many."""
        if size <= self.kept:
            return self.second_bytes
        return self.third_bytes if size <= self.machine.l3 else self.far_bytes

    def streams(self, size: int) -> bool:
        """Whether a result of this many bytes bypasses the caches, if its kernel never reads it."""
        m = self.machine
        return m.has("avx") and size >= max(self.streamed, m.l3)

    def resident_rows(self, pitch: int) -> float:
        """Rows, `pitch` bytes apart, of which the first cache holds one line each.

        A way of a first cache is as large as a page, because it is found by the offset in the page.
        """
        if not pitch:
            return math.inf
        apart = max(self.machine.line, math.gcd(pitch, self.l1_way))
        return self.l1_way // apart * max(1, self.machine.l1 // self.l1_way)

    def stays(self, rows: int, pitch: int) -> bool:
        """Whether the second cache keeps one line of each of this many rows, `pitch` bytes apart.

        A line's address determines its set; rows a power of two apart share few sets, and evict one
        another long before the cache is full.
        """
        l2 = self.machine.l2
        if pitch:
            places = l2 // math.gcd(pitch, max(1, l2 // self.l2_ways))
        else:
            places = l2
        return rows <= self.full * places

    def traffic(self, size: int) -> float:
        """The weight of a byte that is read again, of so many: 0 where they stay in the first
        cache."""
        if size <= self.l1_full * self.machine.l1:
            return 0.0
        if size <= self.full * self.machine.l2:
            return 1.0
        return self.far_weight


def _accessed(c: Computation) -> Mapping[str, int]:
    """The elements that a Computation reads and writes of each buffer by name, at most: one per
    access and value of the dimensions that its index has."""
    found: Counter[str] = Counter()
    places = [(o.tensor, o.index) for o in c.outputs]
    for buffer, index in (*((a.buffer, a.index) for a in c.accesses), *places):
        named = {n for i in index for n in postorder(i) if isinstance(n, Var)}
        found[buffer.name] += math.prod(d.extent for d in c.dims if d.var in named)
    return found


@cache
def cost_model(machine: CpuMachine) -> CostModel:
    """The cost model of a machine: the constants by default, and those that were measured on it."""
    measured: dict[str, Any] = dict(machine.measured)
    return CostModel(machine, **measured)


def constants() -> Sequence[Constant]:
    """Every constant of cost: those that every kernel has, and then those of single kinds."""
    single = {f.name for f in fields(KernelCosts)}
    found: list[Constant] = []
    for f in sorted(fields(CostModel), key=lambda f: f.name in single):
        if f.metadata:
            value: Any = f.default
            unit = f.metadata["unit"]
            meaning = f.metadata["meaning"]
            source = f.metadata["source"] or f"{SWEEP} {f.name}"
            whole = f.type == "int"
            found.append(
                Constant(
                    name=f.name,
                    value=value,
                    whole=whole,
                    unit=unit,
                    meaning=meaning,
                    source=source,
                )
            )
    return found
