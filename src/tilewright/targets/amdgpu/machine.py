"""AMD's GPUs as seen by code generation: the resources of one compute unit.

Figures come from AMD's instruction set manuals ("CDNA3", "RDNA3") and LLVM's "User Guide for AMDGPU
Backend". Units and clocks are typical of the family, and nothing here has been measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.targets.simt.machine import GENERIC, SimtMachine, architecture

BLOCK_THREADS: Final = 1024
_K: Final = 1 << 10
_SIMDS: Final = 4  # of a unit: each runs its own waves
_BLOCKS: Final = 16  # of a unit at once
# Of an MI300X and of a Radeon RX 7900 XTX; AMD's data sheets of these have them.
_CDNA: Final = (304, 5300.0, 10_000.0, 2.1)
_RDNA: Final = (96, 960.0, 3000.0, 2.5)


@dataclass(frozen=True, slots=True)
class AmdMachine:
    """One architecture, by LLVM's name.

    warp: threads of a wave. waves: the most waves of a SIMD at once. file: registers of each lane
    of a SIMD, allocated in multiples of `granule`. thread_registers: the most of a thread. shared:
    bytes of a block. units, bandwidth, cache_bandwidth, clock: as for `SimtMachine`, per
    nanosecond.
    """

    name: str
    warp: int
    waves: int
    file: int
    granule: int
    thread_registers: int
    shared: int
    units: int
    bandwidth: float
    cache_bandwidth: float
    clock: float
    vector_bits: int = 128
    arch: str = "amdgcn"

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self.thread_registers

    @property
    def simt(self) -> SimtMachine:
        """The architecture as schedules see it."""
        lanes = 16 if self.warp == 64 else 32
        return replace(
            GENERIC,
            name=self.name,
            units=self.units,
            warp=self.warp,
            unit_threads=_SIMDS * self.waves * self.warp,
            unit_blocks=_BLOCKS,
            block_threads=BLOCK_THREADS,
            usual_threads=256,
            shared=self.shared,
            registers=_SIMDS * self.file * self.warp,
            thread_registers=self.thread_registers,
            vector_bytes=self.vector_bits // 8,
            bandwidth=self.bandwidth,
            cache_bandwidth=self.cache_bandwidth,
            shared_rate=128 * self.clock,
            rate=_SIMDS * lanes * self.clock,
        )

    def has(self, feature: str) -> bool:
        """Whether code may use an LLVM feature."""
        return feature == "fma"


# name: threads in step, waves and registers of a SIMD, granule, registers of a thread, KiB shared
_ROWS: Final = {
    "gfx906": (64, 10, 256, 4, 256, 64),
    "gfx908": (64, 10, 256, 4, 256, 64),
    "gfx90a": (64, 8, 512, 8, 512, 64),
    "gfx942": (64, 8, 512, 8, 512, 64),
    "gfx950": (64, 8, 512, 8, 512, 160),
    "gfx1030": (32, 16, 1024, 8, 256, 64),
    "gfx1100": (32, 16, 1536, 24, 256, 64),
    "gfx1201": (32, 16, 1536, 24, 256, 64),
}
DEFAULT: Final = "gfx942"


def _machine(name: str, row: tuple[int, int, int, int, int, int]) -> AmdMachine:
    warp, waves, file, granule, registers, shared = row
    units, bandwidth, cache_bandwidth, clock = _CDNA if warp == 64 else _RDNA
    return AmdMachine(
        name=name,
        warp=warp,
        waves=waves,
        file=file,
        granule=granule,
        thread_registers=registers,
        shared=shared * _K,
        units=units,
        bandwidth=bandwidth,
        cache_bandwidth=cache_bandwidth,
        clock=clock,
    )


MACHINES: Final = {name: _machine(name, row) for name, row in _ROWS.items()}


def machine(name: str = DEFAULT) -> AmdMachine:
    """The architecture of a name; "native" is the usual one. Raises UnsupportedError for others."""
    return architecture(MACHINES, name, DEFAULT)
