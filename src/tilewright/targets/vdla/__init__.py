"""A simulated small example accelerator: two on-chip memories and one matrix unit.

The matrix unit reads `inp_buffer` and accumulates into `acc_buffer`. `gemm8x8` is the unit,
`dma_copy2d` moves rectangles between these and the caller's memory. There is no scalar unit:
everything except loops and addresses has to use these intrinsics, through `tensorize`. After the
VDLA of TVM's tutorials (Chen et al., OSDI 2018).
"""

from __future__ import annotations

from tilewright.targets.vdla.intrinsics import dma_copy2d, fill_zero, gemm8x8
from tilewright.targets.vdla.machine import ACC_BUFFER as acc_buffer
from tilewright.targets.vdla.machine import INP_BUFFER as inp_buffer

__all__ = ["acc_buffer", "dma_copy2d", "fill_zero", "gemm8x8", "inp_buffer"]
