"""Tensor intrinsics of processors: dot products of AVX-512 (VNNI, BF16), AMX tiles, transposes.

One instruction sums the products of the narrow numbers in each 32-bit lane. The numbers of a lane
of `b` are adjacent: `pack` the right-hand side of a product in the order (block of k, column, k
inside), by `interleave`. Semantics and rounding follow Intel's SDM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base import dtypes
from tilewright.base.dtypes import DType, bfloat16, float32, int8, int32, uint8
from tilewright.compute.build import cast, map_, reduce_
from tilewright.expr.nodes import Buffer, Expr
from tilewright.loops.intrinsic import (
    Extent,
    Formal,
    HardwareCall,
    TensorIntrinsic,
    decl_tensor_intrinsic,
    hardware_intrinsic,
)

LANES = 16
TILE = 16  # rows of a tile register at most, and its columns of 4 bytes
TILE_REGISTERS = 8

# One step's error, of a sum of magnitudes: two roundings to float32 at most.
_BF16 = 2.0**-23
_ROUNDING = "denormals count as 0; rounds to nearest even, in its own order"

Call = tuple[HardwareCall | None, HardwareCall | None, HardwareCall | None]


def _dot(
    name: str, a: DType, b: DType, out: DType, features: Sequence[str]
) -> TensorIntrinsic:
    """`out[i] += sum over k of a[k] * b[i, k]` for 16 lanes i."""
    inside = 4 // a.itemsize
    x = Buffer("a", (inside,), a)
    w = Buffer("b", (LANES, inside), b)
    y = Buffer("out", (LANES,), out)

    def lower(inputs: Sequence[Formal], outputs: Sequence[Formal]) -> Call:
        reads = (t.access_ptr("r") for t in inputs)
        return None, None, hardware_intrinsic(name, outputs[0].access_ptr("rw"), *reads)

    return decl_tensor_intrinsic(
        reduce_(
            name, y, (inside,), "add", lambda i, k: cast(x[k], out) * cast(w[i, k], out)
        ),
        lower,
        name=f"cpu.{name}",
        target="cpu",
        features=features,
        tolerance=0.0 if out is int32 else _BF16,
        rounding="" if out is int32 else _ROUNDING,
    )


def _block_dot(bits: int) -> TensorIntrinsic:
    """`out[i] += sum over h, k of a[h, k] * (b[i, k] >> h * bits)` for 16 lanes i, of `bits` bits.

    a: signed; b: bytes of 8 / bits unsigned numbers. With whole bytes there is no h.
    """
    parts, inside = 8 // bits, 4
    x = Buffer("a", (parts, inside) if parts > 1 else (inside,), int8)
    w = Buffer("b", (LANES, inside), uint8)
    y = Buffer("out", (LANES,), int32)

    def lower(inputs: Sequence[Formal], outputs: Sequence[Formal]) -> Call:
        reads = (t.access_ptr("r") for t in inputs)
        call = hardware_intrinsic(
            f"vpdpbusd.{bits}", outputs[0].access_ptr("rw"), *reads
        )
        return None, None, call

    def whole(i: Any, k: Any) -> Expr:
        return cast(x[k], int32) * cast(w[i, k], int32)

    def part(i: Any, h: Any, k: Any) -> Expr:
        q = (w[i, k] >> cast(h * bits, uint8)) & ((1 << bits) - 1)
        return cast(x[h, k], int32) * cast(q, int32)

    over, value = ((inside,), whole) if parts == 1 else ((parts, inside), part)
    return decl_tensor_intrinsic(
        reduce_(f"vpdpbusd.{bits}", y, over, "add", value),
        lower,
        name=f"cpu.vpdpbusd.{bits}",
        target="cpu",
        features=["avx512vnni"],
    )


def _interleave(dtype: DType) -> TensorIntrinsic:
    """`out[i, k] = a[k, i]` for 16 i: rows of narrow numbers as the lanes of a dot product."""
    inside = 4 // dtype.itemsize
    x = Buffer("a", (inside, LANES), dtype)
    y = Buffer("out", (LANES, inside), dtype)

    def lower(inputs: Sequence[Formal], outputs: Sequence[Formal]) -> HardwareCall:
        (source,), (to,) = inputs, outputs
        pointers = to.access_ptr("w"), source.access_ptr("r")
        return hardware_intrinsic("interleave", *pointers, source.strides[0])

    return decl_tensor_intrinsic(
        map_("interleave", y, lambda i, k: x[k, i]),
        lower,
        name=f"cpu.interleave.{dtype.name}",
        target="cpu",
    )


def tile_groups(columns: int) -> int:
    """How many tiles of rows a product of tiles with so many columns has at most: beside the
    results, registers hold all tiles of columns and at least one of rows."""
    across = columns // TILE
    return (TILE_REGISTERS // 2) // across


def _tiles(
    name: str, a: DType, b: DType, out: DType, feature: str, columns: int
) -> TensorIntrinsic:
    """`out[i, g, j] +=` the sum over t, u, kb, k and kk of `a[i, g, t, u, kb, k, kk] *
    b[t, u, kb, k, j, kk]`, for rows i, several groups g of them, and all columns j.

    As `compute`, it starts from 0 and the results enter memory once; as `update`, it adds. t and u
    are what a convolution slides over.
    """
    inside = 4 // a.itemsize
    x = Buffer("a", (TILE, 1, 1, 1, 1, TILE, inside), a)
    w = Buffer("b", (1, 1, 1, TILE, columns, inside), b)
    y = Buffer("out", (TILE, 1, columns), out)

    def lower(inputs: Sequence[Formal], outputs: Sequence[Formal]) -> Call:
        (first, second), (to,) = inputs, outputs
        reads = first.access_ptr("r"), second.access_ptr("r")
        strides = (*to.strides[:2], *first.strides[:5], *second.strides[:4])
        extents = [Extent(n) for n in (0, 1, 3, 4, 5)]
        start = hardware_intrinsic(name, to.access_ptr("w"), *reads, *strides, *extents)
        step = hardware_intrinsic(
            f"{name}.add", to.access_ptr("rw"), *reads, *strides, *extents
        )
        return start, None, step

    def value(i: Any, g: Any, j: Any, t: Any, u: Any, kb: Any, k: Any, kk: Any) -> Expr:
        return cast(x[i, g, t, u, kb, k, kk], out) * cast(w[t, u, kb, k, j, kk], out)

    return decl_tensor_intrinsic(
        reduce_(name, y, (1, 1, 1, TILE, inside), "add", value),
        lower,
        name=f"cpu.{name}.{columns}",
        free=("i", "g", "t", "u", "kb"),
        most={"i": TILE, "g": tile_groups(columns)},
        target="cpu",
        features=("amx-tile", feature),
        tolerance=0.0 if out is int32 else _BF16,
        rounding="" if out is int32 else _ROUNDING,
    )


def _lower_transpose(
    inputs: Sequence[Formal],
    outputs: Sequence[Formal],
) -> HardwareCall:
    (source,), (to,) = inputs, outputs
    pointers = to.access_ptr("w"), source.access_ptr("r")
    strides = to.strides[0], source.strides[0]
    return hardware_intrinsic("transpose", *pointers, *strides, Extent(0), Extent(1))


def _transpose(dtype: DType) -> TensorIntrinsic:
    """`out[i, j] = a[j, i]` of a tile with any extents, both contiguous along their last axis."""
    x = Buffer("a", (LANES, LANES), dtype)
    y = Buffer("out", (LANES, LANES), dtype)

    return decl_tensor_intrinsic(
        map_("transpose", y, lambda i, j: x[j, i]),
        _lower_transpose,
        name=f"cpu.transpose.{dtype.name}",
        free=("i", "j"),
        target="cpu",
    )


def _transpose_words(dtype: DType) -> TensorIntrinsic:
    """`out[i, j, k] = a[j, i, k]` of a tile with any extents: words of 4 bytes change places."""
    inside = 4 // dtype.itemsize
    x = Buffer("a", (LANES, LANES, inside), dtype)
    y = Buffer("out", (LANES, LANES, inside), dtype)

    return decl_tensor_intrinsic(
        map_("transpose", y, lambda i, j, k: x[j, i, k]),
        _lower_transpose,
        name=f"cpu.transpose.words.{dtype.name}",
        free=("i", "j"),
        target="cpu",
    )


vpdpbusd = _dot("vpdpbusd", uint8, int8, int32, ["avx512vnni"])
vdpbf16ps = _dot("vdpbf16ps", bfloat16, bfloat16, float32, ["avx512bf16"])
DOTS = (vpdpbusd, vdpbf16ps)
BLOCK_DOTS = {bits: _block_dot(bits) for bits in (4, 8)}
INTERLEAVES = {d: _interleave(d) for d in (int8, bfloat16)}
WORD_TRANSPOSES = {bfloat16: _transpose_words(bfloat16)}
TILES = tuple(
    _tiles(*row, columns)
    for row in (
        ("tdpbusd", uint8, int8, int32, "amx-int8"),
        ("tdpbssd", int8, int8, int32, "amx-int8"),
        ("tdpbf16ps", bfloat16, bfloat16, float32, "amx-bf16"),
    )
    for columns in (TILE, 2 * TILE)
)
_WORDS = ("float64", "int64", "uint64", "float32", "int32", "uint32")
_NARROW = ("float16", "bfloat16", "int16", "uint16", "int8", "uint8", "bool_")
TRANSPOSES = {
    d: _transpose(d) for d in (getattr(dtypes, name) for name in (*_WORDS, *_NARROW))
}
