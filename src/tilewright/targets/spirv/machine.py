"""A machine that runs SPIR-V, as the emitter sees it; schedules see a `SimtMachine`."""

from __future__ import annotations

from tilewright.base.dataclass import dataclass
from tilewright.targets.simt.machine import SimtMachine


@dataclass(frozen=True, slots=True)
class SpirvMachine:
    """simt: its resources."""

    simt: SimtMachine
    arch: str = "spirv64"

    @property
    def vector_bits(self) -> int:
        """Bits of the widest load."""
        return 8 * self.simt.vector_bytes

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self.simt.thread_registers

    def has(self, feature: str) -> bool:
        """Whether code may use an LLVM feature."""
        return feature == "fma"
