"""Tensor intrinsics of sm_90a: `wgmma`, a product of tiles by the 128 threads of four warps.

A product has 64 rows, and 64 elements along the sum: four instructions in one group, for which the
threads wait. Both factors are in shared memory, swizzled, in rows of 128 bytes: along the sum, or
beside it; of 128 columns, the second 64 are in a block of their own then. The instruction reads
them by the path of asynchronous copies (the "async proxy"). Shapes follow the PTX ISA,
"Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tilewright.base.dtypes import DType, bfloat16, float16, float32
from tilewright.compute.build import cast, reduce_
from tilewright.expr.nodes import Buffer, Expr
from tilewright.expr.swizzle import BLOCK, CHUNKS
from tilewright.loops.intrinsic import (
    Formal,
    TensorIntrinsic,
    ThreadShare,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.targets.cuda.intrinsics import SUM, SUM_WORDS, Calls, store_of
from tilewright.targets.cuda.machine import WARP

GROUP: Final = 4 * WARP  # threads
GROUP_ROWS: Final = 64
GROUP_COLUMNS: Final = (64, 128)  # columns of a product, of which there is an intrinsic
GROUP_DEPTH: Final = 64  # elements along the sum
STEP: Final = 16  # of these, in one instruction
PATTERN: Final = BLOCK * CHUNKS  # bytes after which a swizzled buffer repeats its order
FEATURE: Final = "sm_90a"
# Warp z has 16 rows in a row; its threads (x, y) of 4 x 8 have of these what those of `mma` have.
_FRAGMENT: Final = (
    (ThreadShare("threadIdx.z", 16, 4), ThreadShare("threadIdx.y", 1, 8)),
    (ThreadShare("threadIdx.x", 2, 4),),
)


class FactorLayout(NamedTuple):
    """How a factor lies in shared memory. is_turned: its rows go across the sum. step: bytes from
    the part of one instruction to that of the next. leading: from a block of rows to the next."""

    is_turned: bool
    step: int
    leading: int = 0


def factor_layout(
    side: int, strides: tuple[int, int], swizzle: int, block: int = 0
) -> FactorLayout | None:
    """How a factor of 16-bit elements lies that `wgmma` can read; None if it cannot.

    side: its elements beside the sum. strides: elements between neighbors beside the sum, and along
    it. swizzle: of its buffer. block: elements from 64 beside the sum to the next 64, if these are
    apart.
    """
    if swizzle != BLOCK:
        return None
    if strides == (GROUP_DEPTH, 1) and not block:
        return FactorLayout(False, STEP * _ITEM)
    is_whole = block * _ITEM % PATTERN == 0 if block else side == GROUP_DEPTH
    if strides == (1, GROUP_DEPTH) and is_whole:
        return FactorLayout(True, STEP * BLOCK, block * _ITEM)
    return None


_ITEM: Final = 2  # bytes of an element


def _product(of: DType, columns: int, in_blocks: bool) -> TensorIntrinsic:
    """`out[i, j] += sum over k of a[i, k] * b[k, j]`. in_blocks: b is b[j / 64, k, j % 64]."""
    a = Buffer("a", (GROUP_ROWS, GROUP_DEPTH), of)
    c = Buffer("out", (GROUP_ROWS, columns), float32)
    split = (columns // GROUP_DEPTH, GROUP_DEPTH)
    shape = (split[0], GROUP_DEPTH, split[1]) if in_blocks else (GROUP_DEPTH, columns)
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
            (GROUP_DEPTH,),
            "add",
            blocked,
            extents=(GROUP_ROWS, *split),
            index=lambda i, o, j: (i, o * GROUP_DEPTH + j),
        )
    else:
        meaning = reduce_("wgmma", c, (GROUP_DEPTH,), "add", plain)
    return decl_tensor_intrinsic(
        meaning,
        lower,
        name=f"cuda.wgmma.{of}.{columns}{'.blocks' * in_blocks}",
        alignment={"a": PATTERN, "b": PATTERN},
        scopes=[("shared", "shared", "warp")],
        target="cuda",
        features=[FEATURE],
        tolerance=GROUP_DEPTH // STEP * SUM,
        rounding=SUM_WORDS,
        threads=GROUP,
        fragment=_FRAGMENT,
        by_proxy=True,
    )


GROUP_PRODUCTS: Final = {
    (of, columns, in_blocks): _product(of, columns, in_blocks)
    for of in (float16, bfloat16)
    for columns in GROUP_COLUMNS
    for in_blocks in (False, True)[: 1 + (columns > GROUP_DEPTH)]
}
GROUP_STORES: Final = {
    n: store_of(f"wgmma.store.{n}", (GROUP_ROWS, n), float32, FEATURE, GROUP, _FRAGMENT)
    for n in GROUP_COLUMNS
}
