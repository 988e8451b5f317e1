"""Tensor intrinsics of NVIDIA's GPUs: `mma.sync`, a product of tiles by the 32 threads of a warp.

The accumulators are a tile in "warp", of which each thread has four elements in registers; `fill`
initializes it, `store` writes it to memory. The factors are in memory with any strides: with a
stride of 1 along the reduction a thread loads words of 32 bits, otherwise single elements;
`ldmatrix` loads tiles in shared memory with aligned rows for the whole warp. Shapes and types
follow the PTX ISA, "Warp-level matrix instructions", from sm_80 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product, starmap
from typing import Final, NamedTuple

from tilewright.base.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
    uint8,
)
from tilewright.compute.build import cast, map_, reduce_
from tilewright.expr.nodes import Buffer
from tilewright.loops.intrinsic import (
    Formal,
    Fragment,
    HardwareCall,
    TensorIntrinsic,
    ThreadShare,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)
from tilewright.targets.cuda.machine import WARP

ROWS: Final = 16
COLUMNS: Final = 8
FEATURE: Final = "sm_80"
_MEMORY: Final = ("global", "shared")
# Thread (x, y) of 4 x 8 has rows y + 8*i and columns 2*x + 8*j + (0, 1): of a tile of results, and
# as well of a left factor of 16 bits, so that results are a factor of the next product as they are.
QUADS: Final = (4, 8)
FRAGMENT: Final = (
    (ThreadShare("threadIdx.y", 1, 8),),
    (ThreadShare("threadIdx.x", 2, 4),),
)
# PTX says neither the order of a sum nor how it is rounded. If each of 17 addends is cut off at
# 24 bits of the largest, each loses at most 2^-23 of the sum of magnitudes.
SUM: Final = 17 * 2.0**-23
SUM_WORDS: Final = "adds in its own order, and may truncate the addends"
# A factor of tf32 has 10 bits after the point: half a unit of each, in both factors.
_TF32: Final = 2.0**-10 + SUM
_TF32_WORDS: Final = f"rounds the factors to 10 bits; {SUM_WORDS}"

# Tensor cores of Hopper keep about 14 bits of sums of fp8 (DeepSeek-AI 2024, "DeepSeek-V3 Technical
# Report", section 3.3.2): each of 33 addends loses at most 2^-13 of the largest.
EIGHT_BITS: Final = 33 * 2.0**-13
EIGHT_BITS_WORDS: Final = "adds in its own order, and keeps about 14 bits of the sum"
EIGHT_BITS_TYPES: Final = (float8_e4m3fn, float8_e5m2)
_EIGHT_BITS_FEATURES: Final = ("sm_89", "ptx84")  # the first version of PTX that has it

MATRIX_ROW: Final = 16  # bytes of a row of a matrix that `ldmatrix` loads
_MATRIX_ITEM: Final = 2  # bytes of an element where it transposes


class MatrixLoads(NamedTuple):
    """How `ldmatrix` loads a factor. pitch: elements from one row to the next. is_turned: rows go
    across the sum, and the instruction transposes."""

    pitch: int
    is_turned: bool


def matrix_loads(itemsize: int, strides: tuple[int, int]) -> MatrixLoads | None:
    """How `ldmatrix` loads a factor from a tile that begins at a multiple of a row; None if it
    cannot.

    strides: elements between neighbors on the factor's side, and along the sum. Rows are contiguous
    and begin at multiples of their size.
    """
    beside, along = strides
    if 1 not in strides:
        return None
    is_turned = along != 1
    pitch = along if is_turned else beside
    if pitch * itemsize % MATRIX_ROW or (is_turned and itemsize != _MATRIX_ITEM):
        return None
    return MatrixLoads(pitch, is_turned)


def _left_scopes(of: DType) -> tuple[str, ...]:
    """Where the left factor may be: in registers too, if its fragments are those of results."""
    return (*_MEMORY, "warp") if of.itemsize == _MATRIX_ITEM else _MEMORY


Calls = tuple[HardwareCall | None, HardwareCall | None, HardwareCall | None]


def _mma(
    name: str,
    of: DType,
    out: DType,
    tolerance: float = 0.0,
    rounding: str = "",
    right: DType | None = None,
    features: Sequence[str] = (FEATURE,),
) -> TensorIntrinsic:
    """`out[i, j] += sum over k of a[i, k] * b[k, j]`, with 32 bytes of k. right: the dtype of b,
    if it is another."""
    depth = WARP // of.itemsize
    a, b = Buffer("a", (ROWS, depth), of), Buffer("b", (depth, COLUMNS), right or of)
    c = Buffer("out", (ROWS, COLUMNS), out)

    def lower(inputs: Sequence[Formal], outputs: Sequence[Formal]) -> Calls:
        (to,) = outputs
        strides = (s for t in (*inputs, to) for s in t.strides)
        reads = (t.access_ptr("r") for t in inputs)
        update = hardware_intrinsic(
            f"mma.{name}", to.access_ptr("rw"), *reads, *strides
        )
        return (
            None,
            hardware_intrinsic("mma.fill", to.access_ptr("w"), *to.strides),
            update,
        )

    return decl_tensor_intrinsic(
        reduce_(
            "mma",
            c,
            (depth,),
            "add",
            lambda i, j, k: cast(a[i, k], out) * cast(b[k, j], out),
        ),
        lower,
        name=f"cuda.mma.{name}",
        scopes=[(*pair, "warp") for pair in product(_left_scopes(of), _MEMORY)],
        target="cuda",
        features=features,
        tolerance=tolerance,
        rounding=rounding,
        threads=WARP,
        fragment=FRAGMENT,
    )


def store_of(
    name: str,
    sides: tuple[int, int],
    dtype: DType,
    feature: str,
    threads: int,
    fragment: Fragment,
) -> TensorIntrinsic:
    """`out[i, j] = a[i, j]`: a tile of accumulators, of rows by columns, to memory."""
    a = Buffer("a", sides, dtype)
    out = Buffer("out", sides, dtype)

    def lower(inputs: Sequence[Formal], outputs: Sequence[Formal]) -> HardwareCall:
        (held,), (to,) = inputs, outputs
        pointers = to.access_ptr("w"), held.access_ptr("r")
        return hardware_intrinsic("mma.store", *pointers, *to.strides, *held.strides)

    return decl_tensor_intrinsic(
        map_("store", out, lambda i, j: a[i, j]),
        lower,
        name=f"cuda.{name}",
        scopes=[("warp", memory) for memory in _MEMORY],
        target="cuda",
        features=[feature],
        threads=threads,
        fragment=fragment,
    )


def _mma_of_eight_bits(a: DType, b: DType) -> TensorIntrinsic:
    rounding = EIGHT_BITS, EIGHT_BITS_WORDS
    name = f"{a}" if a is b else f"{a}.{b}"
    return _mma(name, a, float32, *rounding, b, _EIGHT_BITS_FEATURES)


PRODUCTS: Final = (
    _mma("float16", float16, float32, SUM, SUM_WORDS),
    _mma("bfloat16", bfloat16, float32, SUM, SUM_WORDS),
    _mma("tf32", float32, float32, _TF32, _TF32_WORDS),
    _mma("int8", int8, int32),
    _mma("uint8", uint8, int32, right=int8),
    _mma("int8.uint8", int8, int32, right=uint8),
    *starmap(_mma_of_eight_bits, product(EIGHT_BITS_TYPES, repeat=2)),
)
STORES: Final = tuple(
    store_of(f"mma.store.{d.name}", (ROWS, COLUMNS), d, FEATURE, WARP, FRAGMENT)
    for d in (float32, int32)
)
