"""The machine's instructions as tensor intrinsics: what they compute, and how they are called."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer, const
from tilewright.loops.intrinsic import (
    Extent,
    Formal,
    HardwareCall,
    TensorIntrinsic,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.targets.vdla.machine import ACC_BUFFER, EDGE, INP_BUFFER

_SHAPE = (EDGE, EDGE)


def _lower_gemm(
    inputs: Sequence[Formal], outputs: Sequence[Formal]
) -> tuple[HardwareCall, HardwareCall, HardwareCall]:
    a, b = (t.access_ptr("r") for t in inputs)
    made = outputs[0].access_ptr("w")
    changed = outputs[0].access_ptr("rw")
    compute = hardware_intrinsic("gemm8x8", made, a, b)
    reset = hardware_intrinsic("fill_zero", made)
    update = hardware_intrinsic("fused_gemm8x8_add", changed, a, b)
    return compute, reset, update


def _gemm8x8() -> TensorIntrinsic:
    """`C[y, x] = sum over k of A[k, y] * B[k, x]`, all 8x8."""
    a, b, c = (Buffer(name, _SHAPE, float32) for name in "ABC")
    meaning = reduce_("gemm8x8", c, (EDGE,), "add", lambda y, x, k: a[k, y] * b[k, x])
    return decl_tensor_intrinsic(
        meaning,
        _lower_gemm,
        name="vdla.gemm8x8",
        scopes=[(INP_BUFFER, INP_BUFFER, ACC_BUFFER)],
        target="vdla",
    )


def _lower_dma(inputs: Sequence[Formal], outputs: Sequence[Formal]) -> HardwareCall:
    (source,), (to,) = inputs, outputs
    return hardware_intrinsic(
        "dma_copy2d",
        to.access_ptr("w"),
        source.access_ptr("r"),
        to.strides[0],
        source.strides[0],
        Extent(0),
        Extent(1),
    )


def _dma_copy2d() -> TensorIntrinsic:
    """`to[y, x] = source[y, x]`, of any extents; rows are apart by any stride."""
    source = Buffer("source", _SHAPE, float32)
    to = Buffer("to", _SHAPE, float32)
    return decl_tensor_intrinsic(
        map_("dma_copy2d", to, lambda y, x: source[y, x]),
        _lower_dma,
        name="vdla.dma_copy2d",
        scopes=[("global", INP_BUFFER), ("global", ACC_BUFFER), (ACC_BUFFER, "global")],
        free=("y", "x"),
        target="vdla",
    )


def _fill_zero() -> TensorIntrinsic:
    """`C[y, x] = 0`, for accumulators that are cleared separately from any product."""
    c = Buffer("C", _SHAPE, float32)
    return decl_tensor_intrinsic(
        map_("fill_zero", c, lambda y, x: const(0.0, float32)),
        lambda inputs, outputs: hardware_intrinsic(
            "fill_zero", outputs[0].access_ptr("w")
        ),
        name="vdla.fill_zero",
        scopes=[(ACC_BUFFER,)],
        target="vdla",
    )


gemm8x8 = _gemm8x8()
dma_copy2d = _dma_copy2d()
fill_zero = _fill_zero()
