"""VTA, the Versatile Tensor Accelerator (Moreau et al., 2018), simulated: instructions and timing.

A matrix unit of bytes and an ALU of 32-bit lanes work on explicit buffers; a load, a compute and a
store module run side by side and are ordered by tokens alone.
"""

from __future__ import annotations

from tilewright.targets.vta.config import Memory, VTAConfig
from tilewright.targets.vta.errors import DeadlockError, VTAError
from tilewright.targets.vta.fields import AluOp
from tilewright.targets.vta.functional import Counters, FunctionalSimulator
from tilewright.targets.vta.isa import Alu, Finish, Gemm, Instruction, Load, Store
from tilewright.targets.vta.text import assemble, disassemble
from tilewright.targets.vta.timeline import Timing
from tilewright.targets.vta.timing import TimingParameters, TimingSimulator

__all__ = [
    "Alu",
    "AluOp",
    "Counters",
    "DeadlockError",
    "Finish",
    "FunctionalSimulator",
    "Gemm",
    "Instruction",
    "Load",
    "Memory",
    "Store",
    "Timing",
    "TimingParameters",
    "TimingSimulator",
    "VTAConfig",
    "VTAError",
    "assemble",
    "disassemble",
]
