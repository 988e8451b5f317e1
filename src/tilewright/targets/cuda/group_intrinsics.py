"""Tensor intrinsics of sm_90a: `wgmma`, a product of tiles by the 128 threads of four warps.

A product has 64 rows, and 128 bytes along the sum: four instructions. Both factors are in shared
memory, swizzled, in rows of 128 bytes: along the sum or, elements of 16 bits only, beside it; of
more than 64 columns, each 64 are in a block of their own then. The instruction reads
them by the path of asynchronous copies (the "async proxy"). Shapes follow the PTX ISA,
"Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tilewright.base.dtypes import DType, bfloat16, float16, float32
from tilewright.compute.build import cast, reduce_
from tilewright.expr.nodes import Buffer, Expr
from tilewright.expr.swizzle import BLOCK, PATTERN
from tilewright.loops.intrinsic import (
    Formal,
    TensorIntrinsic,
    ThreadShare,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.targets.cuda.intrinsics import (
    EIGHT_BITS,
    EIGHT_BITS_TYPES,
    EIGHT_BITS_WORDS,
    SUM,
    SUM_WORDS,
    Calls,
    store_of,
)
from tilewright.targets.cuda.machine import WARP

GROUP: Final = 4 * WARP  # threads
GROUP_ROWS: Final = 64
# Columns of a product of which there is an intrinsic.
GROUP_COLUMNS: Final = (64, 128, 256)
GROUP_BLOCK: Final = 64  # columns of a block whose rows go across the sum
STEP: Final = 32  # bytes along the sum, in one instruction
STEPS: Final = BLOCK // STEP
FEATURE: Final = "sm_90a"
# Warp z has 16 rows in a row; its threads (x, y) of 4 x 8 have of these what those of `mma` have.
_FRAGMENT: Final = (
    (ThreadShare("threadIdx.z", 16, 4), ThreadShare("threadIdx.y", 1, 8)),
    (ThreadShare("threadIdx.x", 2, 4),),
)


TURNING: Final = 2  # bytes of an element of a factor whose rows may go across the sum


class FactorLayout(NamedTuple):
    """How a factor lies in shared memory. is_turned: its rows go across the sum. step: bytes from
    the part of one instruction to that of the next. leading: from a block of rows to the next."""

    is_turned: bool
    step: int
    leading: int = 0


def factor_layout(
    side: int,
    strides: tuple[int, int],
    swizzle: int,
    block: int = 0,
    itemsize: int = TURNING,
) -> FactorLayout | None:
    """How a factor lies that `wgmma` can read; None if it cannot.

    side: its elements beside the sum. strides: elements between neighbors beside the sum, and along
    it. swizzle: of its buffer. block: elements from 64 beside the sum to the next 64, if these are
    apart. itemsize: bytes of an element.
    """
    if swizzle != BLOCK:
        return None
    row = BLOCK // itemsize
    if strides == (row, 1) and not block:
        return FactorLayout(False, STEP)
    is_whole = block * itemsize % PATTERN == 0 if block else side == row
    if itemsize == TURNING and strides == (1, row) and is_whole:
        return FactorLayout(True, STEP // itemsize * BLOCK, block * itemsize)
    return None


def group_depth(of: DType) -> int:
    """Elements along the sum of a product's factor: a row of 128 bytes."""
    return BLOCK // of.itemsize


def _product(of: DType, columns: int, in_blocks: bool) -> TensorIntrinsic:
    """`out[i, j] += sum over k of a[i, k] * b[k, j]`. in_blocks: b is b[j / 64, k, j % 64]."""
    depth = group_depth(of)
    a = Buffer("a", (GROUP_ROWS, depth), of)
    c = Buffer("out", (GROUP_ROWS, columns), float32)
    split = (columns // GROUP_BLOCK, GROUP_BLOCK)
    shape = (split[0], depth, split[1]) if in_blocks else (depth, columns)
    b = Buffer("b", shape, of)

    def lower(inputs: Sequence[Formal], outputs: Sequence[Formal]) -> Calls:
        (to,) = outputs
        strides = (s for t in (*inputs, to) for s in t.strides)
        pointers = to.access_ptr("rw"), *(t.access_ptr("r") for t in inputs)
        fill = hardware_intrinsic("mma.fill", to.access_ptr("w"), *to.strides)
        return None, fill, hardware_intrinsic(f"wgmma.{of}", *pointers, *strides)

    def plain(i: Expr, j: Expr, k: Expr) -> Expr:
        return cast(a[i, k], float32) * cast(b[k, j], float32)

    def blocked(i: Expr, o: Expr, j: Expr, k: Expr) -> Expr:
        return cast(a[i, k], float32) * cast(b[o, k, j], float32)

    if in_blocks:
        meaning = reduce_(
            "wgmma",
            c,
            (depth,),
            "add",
            blocked,
            extents=(GROUP_ROWS, *split),
            index=lambda i, o, j: (i, o * GROUP_BLOCK + j),
        )
    else:
        meaning = reduce_("wgmma", c, (depth,), "add", plain)
    is_wide = of.itemsize == TURNING
    return decl_tensor_intrinsic(
        meaning,
        lower,
        name=f"cuda.wgmma.{of}.{columns}{'.blocks' * in_blocks}",
        alignment={"a": PATTERN, "b": PATTERN},
        scopes=[("shared", "shared", "warp")],
        target="cuda",
        features=[FEATURE],
        tolerance=STEPS * (SUM if is_wide else EIGHT_BITS),
        rounding=SUM_WORDS if is_wide else EIGHT_BITS_WORDS,
        threads=GROUP,
        fragment=_FRAGMENT,
        by_proxy=True,
    )


GROUP_PRODUCTS: Final = {
    (of, columns, in_blocks): _product(of, columns, in_blocks)
    for of in (float16, bfloat16, *EIGHT_BITS_TYPES)
    for columns in GROUP_COLUMNS
    for in_blocks in (False, True)[: 1 + (columns > GROUP_BLOCK)]
    if of.itemsize == TURNING or not in_blocks
}
GROUP_STORES: Final = {
    n: store_of(f"wgmma.store.{n}", (GROUP_ROWS, n), float32, FEATURE, GROUP, _FRAGMENT)
    for n in GROUP_COLUMNS
}
