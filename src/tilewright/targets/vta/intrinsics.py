"""The matrix unit as a tensor intrinsic, and the memories on the chip as scopes.

Copies between DRAM and the chip and lane operations need none: `translate.py` reads them off their
nests, as VTA's own lowering does.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import int8, int32
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer, Cast
from tilewright.loops.intrinsic import (
    Formal,
    HardwareCall,
    TensorIntrinsic,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.loops.scopes import declare_scopes
from tilewright.targets.vta.config import Memory
from tilewright.targets.vta.fields import DEFAULT

INP, WGT, ACC = "vta.inp", "vta.wgt", "vta.acc"
# Where a scope's buffers lie, and how many numbers an element of that memory has.
MEMORIES = {INP: Memory.INP, WGT: Memory.WGT, ACC: Memory.ACC}
BLOCK = DEFAULT.BLOCK
LANES = {INP: BLOCK, WGT: BLOCK * BLOCK, ACC: BLOCK}
DTYPES = {INP: int8, WGT: int8, ACC: int32}

declare_scopes(*MEMORIES)


def _lower_gemm(
    inputs: Sequence[Formal], outputs: Sequence[Formal]
) -> tuple[None, HardwareCall, HardwareCall]:
    inp, wgt = (t.access_ptr("r") for t in inputs)
    reset = hardware_intrinsic("gemm_reset", outputs[0].access_ptr("w"))
    return (
        None,
        reset,
        hardware_intrinsic("gemm", outputs[0].access_ptr("rw"), inp, wgt),
    )


def _gemm() -> TensorIntrinsic:
    """`acc[o] += sum over k of inp[k] * wgt[o, k]`: a tile of bytes, weights by output."""
    inp, wgt = Buffer("inp", (BLOCK,), int8), Buffer("wgt", (BLOCK, BLOCK), int8)
    acc = Buffer("acc", (BLOCK,), int32)
    meaning = reduce_(
        "gemm",
        acc,
        (BLOCK,),
        "add",
        lambda o, k: Cast(inp[k], int32) * Cast(wgt[o, k], int32),
    )
    return decl_tensor_intrinsic(
        meaning, _lower_gemm, name="vta.gemm", scopes=[(INP, WGT, ACC)], target="vta"
    )


gemm = _gemm()
