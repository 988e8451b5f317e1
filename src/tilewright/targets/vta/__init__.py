"""VTA, the Versatile Tensor Accelerator (Moreau et al., 2018), simulated: instructions and timing.

A matrix unit of bytes and an ALU of 32-bit lanes work on explicit buffers; a load, a compute and a
store module run side by side and are ordered by tokens alone.

Read `isa` and `target` first. The files, by subject:

the machine: config, isa, fields, uops, program, text, listings, errors
simulators: functional, nest, strict, order, timing, stages, timeline, sram, dram
from kernels to instructions: translate, compiled, commands, memory, tokens, transfers, kernel,
    micro, matrix_unit, alu, lanes, pieces, guards, uop_cache
schedules: intrinsics, schedules, lane_schedules, blocks, tiling
networks: quantize, quantized, scales, requantize, layers, operator, packing, partition, board
as a target: target, device
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tilewright.targets.vta.commands import Commands
    from tilewright.targets.vta.compiled import VtaProgram
    from tilewright.targets.vta.config import MemoryId, VTAConfig
    from tilewright.targets.vta.dram import Dram, DramBuffer
    from tilewright.targets.vta.errors import DeadlockError, VTAError
    from tilewright.targets.vta.fields import AluOp
    from tilewright.targets.vta.functional import Counters, FunctionalSimulator
    from tilewright.targets.vta.intrinsics import ACC, INP, WGT, gemm
    from tilewright.targets.vta.isa import Alu, Finish, Gemm, Instruction, Load, Store
    from tilewright.targets.vta.kernel import (
        GEMM,
        RESET,
        IndexLoop,
        VtaKernel,
        VtaOperation,
        kernels,
    )
    from tilewright.targets.vta.layers import (
        Convolution,
        LayerProgram,
        Requantize,
        convolution,
        depthwise,
        pooling,
    )
    from tilewright.targets.vta.listings import listing
    from tilewright.targets.vta.schedules import schedule
    from tilewright.targets.vta.stages import VtaModule
    from tilewright.targets.vta.text import assemble, disassemble
    from tilewright.targets.vta.timeline import VtaTiming
    from tilewright.targets.vta.timing import TimingParameters, TimingSimulator

# Module -> public names, which are loaded when first used: a device needs no part of the compiler.
_PUBLIC: Final = {
    "commands": "Commands",
    "compiled": "VtaProgram",
    "config": "MemoryId VTAConfig",
    "dram": "Dram DramBuffer",
    "errors": "DeadlockError VTAError",
    "fields": "AluOp",
    "functional": "Counters FunctionalSimulator",
    "intrinsics": "ACC INP WGT gemm",
    "isa": "Alu Finish Gemm Instruction Load Store",
    "kernel": "GEMM RESET IndexLoop VtaKernel VtaOperation kernels",
    "layers": "Convolution LayerProgram Requantize convolution depthwise pooling",
    "listings": "listing",
    "schedules": "schedule",
    "stages": "VtaModule",
    "text": "assemble disassemble",
    "timeline": "VtaTiming",
    "timing": "TimingParameters TimingSimulator",
}
_MODULES: Final = {
    name: module for module, names in _PUBLIC.items() for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    # instructions
    "Alu",
    "AluOp",
    "Finish",
    "Gemm",
    "Instruction",
    "Load",
    "MemoryId",
    "VtaModule",
    "Store",
    "assemble",
    "disassemble",
    "listing",
    # the machine
    "Counters",
    "DeadlockError",
    "FunctionalSimulator",
    "VtaTiming",
    "TimingParameters",
    "TimingSimulator",
    "VTAConfig",
    "VTAError",
    # the run time
    "GEMM",
    "RESET",
    "DramBuffer",
    "Commands",
    "Dram",
    "VtaKernel",
    "IndexLoop",
    "VtaOperation",
    "kernels",
    # kernels, layers and networks on it
    "ACC",
    "INP",
    "WGT",
    "Convolution",
    "LayerProgram",
    "VtaProgram",
    "Requantize",
    "convolution",
    "depthwise",
    "gemm",
    "pooling",
    "schedule",
]
