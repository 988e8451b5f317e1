"""The matrix unit as a tensor intrinsic, and the memories on the chip as scopes.

Copies between DRAM and the chip and lane operations need none: `translate.py` reads them off their
nests, as VTA's own lowering does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, dtype_of
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer, Cast, Expr
from tilewright.loops.intrinsic import (
    Formal,
    HardwareCall,
    TensorIntrinsic,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.loops.scopes import declare_scopes
from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.fields import DEFAULT

INP, WGT, ACC = "vta.inp", "vta.wgt", "vta.acc"
MEMORIES = {
    INP: MemoryId.INP,
    WGT: MemoryId.WGT,
    ACC: MemoryId.ACC,
}  # where buffers are

declare_scopes(*MEMORIES)


@dataclass(frozen=True, slots=True)
class Element:
    """What a scope's memory consists of: elements of this shape and dtype, `depth` of them."""

    shape: tuple[int, ...]
    dtype: DType
    lanes: int
    depth: int


@cache
def elements(config: VTAConfig = DEFAULT) -> Mapping[str, Element]:
    """The elements of each scope."""
    found = {scope: config.spaces[memory] for scope, memory in MEMORIES.items()}
    return {
        scope: Element(
            shape=s.shape,
            dtype=dtype_of(f"int{s.bits}"),
            lanes=s.lanes,
            depth=s.depth,
        )
        for scope, s in found.items()
    }


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


def gemm_name(config: VTAConfig) -> str:
    """The intrinsic's name: `vta.gemm` for the default tiles, else with shape and widths after it.

    As in the names of VTA's bitstreams, `1x16_i8w4` has tiles of one row of 16 numbers of 8 bits,
    and weights of 4.
    """
    data, weights = config.operand_bits
    kind = f"{config.BATCH}x{config.BLOCK}_i{data}w{weights}"
    return "vta.gemm" if kind == "1x16_i8w8" else f"vta.gemm_{kind}"


@cache
def gemm(config: VTAConfig = DEFAULT) -> TensorIntrinsic:
    """`acc[row, o] += sum over k of inp[row, k] * wgt[o, k]`: a tile of data by one of weights.

    Tiles of one row have no dimension for it. A schedule's trace names the intrinsic, which is
    declared here on first use.
    """
    of = elements(config)
    inp, wgt, acc = (
        Buffer(scope.removeprefix("vta."), of[scope].shape, of[scope].dtype)
        for scope in (INP, WGT, ACC)
    )

    def term(*v: Expr) -> Expr:
        *rows, o, k = v
        return Cast(inp[(*rows, k)], acc.dtype) * Cast(wgt[o, k], acc.dtype)

    return decl_tensor_intrinsic(
        reduce_("gemm", acc, (config.BLOCK,), "add", term),
        _lower_gemm,
        name=gemm_name(config),
        scopes=[(INP, WGT, ACC)],
        target="vta",
    )


gemm()
