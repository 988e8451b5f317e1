"""The units of tensor cores, as the cost model and the schedules of products see them."""

from __future__ import annotations

from typing import Final, NamedTuple

from tilewright.base.dtypes import DType, float32
from tilewright.expr.swizzle import BLOCK
from tilewright.loops.intrinsic import TensorIntrinsic
from tilewright.targets.cuda.group_intrinsics import (
    GROUP,
    GROUP_COLUMNS,
    GROUP_PRODUCTS,
    GROUP_ROWS,
    GROUP_STORES,
    STEPS,
)
from tilewright.targets.cuda.intrinsics import COLUMNS, PRODUCTS, ROWS, STORES
from tilewright.targets.cuda.machine import WARP

FACTOR: Final = 32  # bytes of a factor's row along the sum, in one `mma`
GROUP_RATE: Final = 1 / 0.63  # of `mma`; see `machine.py`
# About 60 clocks, the latency of a small `mma`; not measured.
GROUP_WAIT: Final = 40.0


class TensorUnit(NamedTuple):
    """What threads do together: a product of tiles. depth: bytes of a factor's row along the sum.

    instructions: of tensor cores. rate: of these, relative to that of `mma`. wait_ns: nanoseconds
    that the threads wait for its results after the last instruction. in_blocks: columns are in
    blocks of 64, which are apart in the right factor.
    """

    rows: int
    columns: int
    depth: int
    threads: int
    instructions: int = 1
    rate: float = 1.0
    wait_ns: float = 0.0
    in_blocks: bool = False


MMA: Final = TensorUnit(ROWS, COLUMNS, FACTOR, WARP)
GROUP_UNITS: Final = {
    columns: TensorUnit(
        GROUP_ROWS, columns, BLOCK, GROUP, STEPS, GROUP_RATE, GROUP_WAIT
    )
    for columns in GROUP_COLUMNS
}


def product_intrinsic(
    left: DType,
    right: DType,
    out: DType,
    unit: TensorUnit = MMA,
    rounds: bool = False,
) -> TensorIntrinsic | None:
    """The instruction for these dtypes. rounds: whether it may round factors of float32 to tf32."""
    if unit.threads > WARP:
        fits = left is right and out is float32
        key = left, unit.columns, unit.in_blocks
        return GROUP_PRODUCTS.get(key) if fits else None
    for intrinsic in PRODUCTS:
        a, b, c = (t.dtype for t in intrinsic.tensors)
        if (a, b, c) == (left, right, out) and (rounds or left is not out):
            return intrinsic
    return None


def store_intrinsic(out: DType, unit: TensorUnit) -> TensorIntrinsic:
    """The instruction that stores a unit's results."""
    if unit.threads > WARP:
        return GROUP_STORES[unit.columns]
    (found,) = (i for i in STORES if i.tensors[0].dtype is out)
    return found
