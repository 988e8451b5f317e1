"""VTA, the Versatile Tensor Accelerator (Moreau et al., 2018), simulated: instructions and timing.

A matrix unit of bytes and an ALU of 32-bit lanes work on explicit buffers; a load, a compute and a
store module run side by side and are ordered by tokens alone.
"""

from __future__ import annotations

from tilewright.targets.vta.commands import Commands
from tilewright.targets.vta.compiled import Program
from tilewright.targets.vta.config import Memory, VTAConfig
from tilewright.targets.vta.dram import Buffer, Dram
from tilewright.targets.vta.errors import DeadlockError, VTAError
from tilewright.targets.vta.fields import AluOp
from tilewright.targets.vta.functional import Counters, FunctionalSimulator
from tilewright.targets.vta.intrinsics import ACC, INP, WGT, gemm
from tilewright.targets.vta.isa import Alu, Finish, Gemm, Instruction, Load, Store
from tilewright.targets.vta.kernel import GEMM, RESET, Kernel, Loop, Operation, kernels
from tilewright.targets.vta.layers import (
    Convolution,
    Layer,
    Requantize,
    convolution,
    depthwise,
    pooling,
)
from tilewright.targets.vta.listing import listing
from tilewright.targets.vta.network import Network, Simulated
from tilewright.targets.vta.schedules import schedule
from tilewright.targets.vta.stages import Stage
from tilewright.targets.vta.text import assemble, disassemble
from tilewright.targets.vta.timeline import Timing
from tilewright.targets.vta.timing import TimingParameters, TimingSimulator

__all__ = [
    # instructions
    "Alu",
    "AluOp",
    "Finish",
    "Gemm",
    "Instruction",
    "Load",
    "Memory",
    "Stage",
    "Store",
    "assemble",
    "disassemble",
    "listing",
    # the machine
    "Counters",
    "DeadlockError",
    "FunctionalSimulator",
    "Timing",
    "TimingParameters",
    "TimingSimulator",
    "VTAConfig",
    "VTAError",
    # the run time
    "GEMM",
    "RESET",
    "Buffer",
    "Commands",
    "Dram",
    "Kernel",
    "Loop",
    "Operation",
    "kernels",
    # kernels, layers and networks on it
    "ACC",
    "INP",
    "WGT",
    "Convolution",
    "Layer",
    "Network",
    "Program",
    "Requantize",
    "Simulated",
    "convolution",
    "depthwise",
    "gemm",
    "pooling",
    "schedule",
]
