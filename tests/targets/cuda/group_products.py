"""Products by `wgmma`: a tile of 64 x columns by four warps, scheduled by primitives."""

from __future__ import annotations

from tests.targets.cuda.mma_products import DTYPES, product
from tilewright.loops.nodes import CLUSTER
from tilewright.schedule import Schedule
from tilewright.targets.cuda.box_tiles import note_boxes
from tilewright.targets.cuda.group_intrinsics import GROUP, GROUP_ROWS, group_depth
from tilewright.targets.cuda.machine import machine
from tilewright.targets.simt.tiles import fetch_ahead, note_copies

EXTENTS = (128, 128, 192)


def tensorized(
    of: str,
    transposed: bool = True,
    columns: int = 64,
    extents: tuple[int, int, int] = EXTENTS,
    groups: int = 1,
    stages: int = 1,
    is_swizzled: bool = True,
    in_boxes: bool = False,
    cluster: tuple[int, int] = (1, 1),
) -> Schedule:
    """`c = a @ b`, or `a @ b.T`, each block with the rows of some groups of four warps.

    stages: tiles of each factor at once, which are copied asynchronously if there are several.
    in_boxes: one thread copies each by one instruction. cluster: neighboring blocks that share rows
    of one factor, down and across; one of the two.
    """
    s = product(of, transposed, extents)
    rows = GROUP_ROWS * groups
    io, jo, ii, ji = s.tile("mm.i", "mm.j", rows, columns)
    acc = s.cache_write("c", jo, "warp")
    ko, ki = s.split("mm.k", group_depth(DTYPES[of]))
    zero = s.decompose_reduction(acc, ii)
    s.reorder(ko, ii, ji, ki)
    parts = {name: s.cache_read(name, ko, "shared") for name in "ab"}
    for part in parts.values():
        if in_boxes:
            s.swizzle(part)
            continue
        loop = s.fuse(f"{part}.r0", f"{part}.r1")
        loop, lane = s.split(loop, 16 // DTYPES[of].itemsize)
        loop, own = s.split(loop, GROUP)
        loop, group = s.split(loop, groups)
        s.bind(own, "threadIdx.x")
        s.bind(group, "threadIdx.y")
        s.unroll(loop)
        s.vectorize(lane)
        if is_swizzled:
            s.swizzle(part)
    nests = [zero[-2:], (ii, ji), (f"{acc}.w0", f"{acc}.w1")]
    inner = []
    for row, _ in nests:
        group, row = s.split(row, GROUP_ROWS)
        s.bind(group, "threadIdx.y")
        inner.append(row)
    s.tensorize(inner[1], f"cuda.wgmma.{of}.{columns}")
    s.tensorize(inner[2], f"cuda.wgmma.store.{columns}")
    if stages > 1:
        spare = int(stages > 2)
        fetched = list(parts.values())
        fetch_ahead(s, ko, fetched, stages, spare)
        note_copies(s, fetched, machine("sm_90a").simt)
    if in_boxes:
        note_boxes(s, list(parts.values()))
    s.bind(io, "blockIdx.y")
    s.bind(jo, "blockIdx.x")
    for loop, count in zip((io, jo), cluster, strict=True):
        if count > 1:
            s.annotate(loop, CLUSTER, count)
    return s
