"""NVIDIA's GPUs as seen by code generation: the resources of one multiprocessor.

Figures come from the table "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++
Programming Guide; granularities come from its occupancy calculator.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.targets.simt.machine import GENERIC, SimtMachine, architecture

WARP: Final = 32
STATIC: Final = 48 << 10  # bytes that a block shares without asking for more
BLOCK_THREADS: Final = 1024
_K: Final = 1 << 10
_TENSOR: Final = 2048  # multiply-adds of tensor cores per clock, of factors of one byte


class GpuRates(NamedTuple):
    """What a GPU of an architecture usually has. units: multiprocessors. bandwidth, cache: bytes
    per nanosecond of its memory, and of the cache that all units share. clock: per nanosecond; in
    each a unit does 64 multiply-adds and moves 128 bytes of shared memory. tensor: the rate of its
    tensor cores by `mma`, relative to an A100's."""

    units: int
    bandwidth: float
    cache: float
    clock: float
    tensor: float


# NVIDIA's white papers of the A100 and the H100 have units, bandwidths and clocks. The H100's cache
# is what DeepGEMM's choice of tiles counts with; `mma` reaches 0.63 of its tensor cores' peak (Luo
# et al. 2024, "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture").
_A100: Final = GpuRates(108, 1555.0, 4000.0, 1.41, 1.0)
_H100: Final = GpuRates(132, 3350.0, 10000.0, 1.83, 2 * 0.63)


@dataclass(frozen=True, slots=True)
class CudaMachine:
    """One architecture, by the name that LLVM and ptxas have for it.

    threads, blocks, shared: of a multiprocessor, in bytes; block_shared: the most that a block may
    have. reserved: bytes of each block's that the system has. registers: of 32 bits, that a thread
    may have at most; unit_registers: of a multiprocessor. rates: of the usual GPU.
    """

    name: str
    threads: int
    blocks: int
    shared: int
    block_shared: int
    reserved: int = _K
    registers: int = 255
    unit_registers: int = 64 * _K
    rates: GpuRates = _A100
    vector_bits: int = 128
    arch: str = "nvptx64"

    @property
    def capability(self) -> int:
        """The compute capability, as 90 for 9.0."""
        return int("".join(c for c in self.name if c.isdigit()))

    @property
    def is_specific(self) -> bool:
        """Whether its code runs on this capability only, and on no later one."""
        return self.name.endswith(("a", "f"))

    @property
    def simt(self) -> SimtMachine:
        """The architecture as schedules see it; clocks and bandwidths are usual ones."""
        return _simt(self)

    def tensor_rate(self, itemsize: int) -> float:
        """Multiply-adds of a unit's tensor cores per nanosecond, by the bytes of a factor."""
        return self.rates.tensor * _TENSOR * self.rates.clock / itemsize

    def has(self, feature: str) -> bool:
        """Whether code may use an LLVM feature, or what an architecture has, by its name. Every
        architecture has every version of PTX, of which the driver may be too old."""
        if feature.endswith("a") and feature in MACHINES:
            return feature == self.name
        if feature.startswith("sm_"):
            return self.capability >= int(feature.removeprefix("sm_"))
        return feature == "fma" or feature.startswith("ptx")


@cache
def _simt(of: CudaMachine) -> SimtMachine:
    rates = of.rates
    return replace(
        GENERIC,
        name=of.name,
        units=rates.units,
        warp=WARP,
        unit_threads=of.threads,
        unit_blocks=of.blocks,
        block_threads=BLOCK_THREADS,
        usual_threads=256,
        shared=of.block_shared,
        registers=of.unit_registers,
        thread_registers=of.registers,
        vector_bytes=of.vector_bits // 8,
        bandwidth=rates.bandwidth,
        cache_bandwidth=rates.cache,
        shared_rate=128 * rates.clock,
        rate=64 * rates.clock,
        async_copies=of.has("sm_80"),
        bulk_copies=of.has("sm_90"),
    )


# capability: threads, blocks, KiB of shared memory of a multiprocessor, and of a block
_ROWS: Final = {
    70: (2048, 32, 96, 96),
    75: (1024, 16, 64, 64),
    80: (2048, 32, 164, 163),
    86: (1536, 16, 100, 99),
    87: (1536, 16, 164, 163),
    89: (1536, 24, 100, 99),
    90: (2048, 32, 228, 227),
    100: (2048, 32, 228, 227),
    120: (1536, 24, 100, 99),
}
_SPECIFIC: Final = (
    90,
    100,
    120,
)  # those of which there is an "a", with all instructions
DEFAULT: Final = "sm_80"


def _machine(name: str, row: tuple[int, int, int, int]) -> CudaMachine:
    threads, blocks, shared, block_shared = row
    reserved = _K if shared != block_shared else 0
    rates = _H100 if name.startswith("sm_90") else _A100
    memory = shared * _K, block_shared * _K, reserved
    return CudaMachine(name, threads, blocks, *memory, rates=rates)


MACHINES: Final = {
    name: _machine(name, row)
    for number, row in _ROWS.items()
    for name in (f"sm_{number}", f"sm_{number}a")[: 1 + (number in _SPECIFIC)]
}


def machine(name: str = DEFAULT) -> CudaMachine:
    """The architecture of a name; "native" is the usual one. Raises UnsupportedError for others."""
    return architecture(MACHINES, name, DEFAULT)
