"""Products by tensor cores: a tile of 32 x 16 by two warps, scheduled by primitives."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import (
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
)
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.operators import cast, reduce_
from tilewright.schedule import Schedule
from tilewright.targets import registry

registry.intrinsics("cuda")
DTYPES = {
    "float16": float16,
    "bfloat16": bfloat16,
    "tf32": float32,
    "int8": int8,
    "float8_e4m3fn": float8_e4m3fn,
    "float8_e5m2": float8_e5m2,
}
OUT = {"int8": int32}
M, N, K = 64, 32, 64


def product(
    of: str, transposed: bool = False, extents: tuple[int, int, int] = (M, N, K)
) -> Schedule:
    """The plain nest of `c = a @ b`, or of `c = a @ b.T`."""
    m, n, k = extents
    out = OUT.get(of, float32)
    a = Buffer("a", (m, k), DTYPES[of])
    b = Buffer("b", (n, k) if transposed else (k, n), DTYPES[of])
    c = Buffer("c", (m, n), out)
    mm = reduce_(
        "mm",
        c,
        (k,),
        "add",
        lambda i, j, k: (
            cast(a[i, k], out) * cast(b[j, k] if transposed else b[k, j], out)
        ),
    )
    return Schedule(lower("product", [mm], params=[a, b, c], outputs=[c]))


def tiled(
    of: str,
    transposed: bool = False,
    pad: int = 0,
    scope: str = "warp",
    extents: tuple[int, int, int] = (M, N, K),
    step: int = 32,
    columns: str = "",
    staged: bool = True,
) -> tuple[Schedule, dict[str, str]]:
    """The schedule up to the instructions, whose nests it names: fill, product, store.

    pad: elements that rows of shared memory are longer. step: of the reduction, in shared memory.
    columns: the axis of the tiles beside one another that are stored. staged: whether factors go
    through shared memory.
    """
    s = product(of, transposed, extents)
    depth = 32 // DTYPES[of].itemsize
    io, jo, ii, ji = s.tile("mm.i", "mm.j", 32, 16)
    acc = s.cache_write("c", jo, scope)
    ko, ki = s.split("mm.k", step)
    zero = s.decompose_reduction(acc, ii)
    s.reorder(ko, ii, ji, ki)
    for name in "ab" if staged else "":
        part = s.cache_read(name, ko, "shared")
        if pad:
            s.storage_align(part, 0, 32, pad)
        s.split(f"{part}.r0", 2)
        s.bind(f"{part}.r0.i", "threadIdx.y")
        s.bind(f"{part}.r1", "threadIdx.x")
    s.bind(io, "blockIdx.y")
    s.bind(jo, "blockIdx.x")
    nests = {}
    for key, (i, j) in {
        "fill": zero,
        "product": (ii, ji),
        "store": (f"{acc}.w0", f"{acc}.w1"),
    }.items():
        warp, row = s.split(i, 16)
        column, inner = s.split(j, 8)
        s.reorder(warp, column, row, inner)
        s.bind(warp, "threadIdx.y")
        if key == "store" and columns:
            s.bind(column, columns)
        else:
            s.unroll(column)
        nests[key] = row
    ks, kk = s.split(ki, depth)
    s.reorder(ks, nests["product"], "mm.j.i.i", kk)
    s.unroll(ks)
    return s, nests


def tensorized(of: str, transposed: bool = False, pad: int = 0, **how: Any) -> Schedule:
    """With the instructions."""
    s, nests = tiled(of, transposed, pad, **how)
    s.tensorize(nests["product"], f"cuda.mma.{of}")
    s.tensorize(nests["store"], f"cuda.mma.store.{OUT.get(of, float32).name}")
    return s
