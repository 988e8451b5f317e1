"""Machines of other shapes: blocks, batches, widths of operands, and buffers from large to tiny."""

from __future__ import annotations

from tests.targets.vta.reference import Shape
from tilewright.targets.vta.config import MemoryId, VTAConfig


def _config(**logs: int) -> VTAConfig:
    return VTAConfig(**{f"LOG_{name}": log for name, log in logs.items()})


CONFIGURATIONS = {
    "1x16": VTAConfig(),
    "1x8": _config(BLOCK=3, INP_BUFF_SIZE=14, WGT_BUFF_SIZE=16, ACC_BUFF_SIZE=16),
    "1x32": _config(BLOCK=5),
    "2x16": _config(BATCH=1),
    "4x4": _config(
        BATCH=2, BLOCK=2, INP_BUFF_SIZE=11, WGT_BUFF_SIZE=10, ACC_BUFF_SIZE=13
    ),
    "1x16 small": _config(
        UOP_BUFF_SIZE=6, INP_BUFF_SIZE=9, WGT_BUFF_SIZE=12, ACC_BUFF_SIZE=11
    ),
    "1x16 w4": _config(WGT_WIDTH=2, WGT_BUFF_SIZE=17),
    "1x16 i4w4": _config(INP_WIDTH=2, WGT_WIDTH=2, INP_BUFF_SIZE=14, WGT_BUFF_SIZE=17),
    "2x8 w2": _config(
        BATCH=1,
        BLOCK=3,
        WGT_WIDTH=1,
        INP_BUFF_SIZE=14,
        WGT_BUFF_SIZE=14,
        ACC_BUFF_SIZE=16,
    ),
    "1x32 i2w8": _config(BLOCK=5, INP_WIDTH=1, INP_BUFF_SIZE=13),
}


def shape(config: VTAConfig) -> Shape:
    """The same machine as the reference is told about it."""
    memories = MemoryId.UOP, MemoryId.WGT, MemoryId.INP, MemoryId.ACC
    uop, wgt, inp, acc = (config.spaces[m].depth for m in memories)
    data, weights = config.operand_bits
    return Shape(config.BATCH, config.BLOCK, data, weights, (uop, wgt, inp, acc))
