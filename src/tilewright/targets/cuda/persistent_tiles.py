"""Persistent blocks of a product on tensor cores: as many as run at once, each with several tiles.

    blockIdx:  fetch the first steps of the first tile
               for each tile of the block:
                 for each step:  fetch a later one; multiply
                 fetch the first steps of the next tile, while
                 for each part of the columns:  store the results in shared memory, then as usual

The results are in memory of their own, of which there is little: so where units of several warps
have large tiles, they go there in parts of 64 columns. Barriers and waits between tiles follow from
the dependences, as within one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import Dim
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.nodes import CLUSTER
from tilewright.schedule import Schedule
from tilewright.schedule.primitives.pipeline import sequence
from tilewright.schedule.primitives.rotate import guarded_body
from tilewright.schedule.space.nest import extents, fuse_all
from tilewright.schedule.tree import find_loop
from tilewright.targets.cuda.box_tiles import copies_boxes
from tilewright.targets.cuda.cluster_tiles import best_cluster, box_time, takes_boxes
from tilewright.targets.cuda.cost import stage_counts, together
from tilewright.targets.cuda.machine import WARP, CudaMachine
from tilewright.targets.cuda.tensor_tiling import (
    ONE_BLOCK,
    PART_COLUMNS,
    ClusterShape,
    TensorTiling,
)
from tilewright.targets.cuda.tensor_waves import best_tensor_wave
from tilewright.targets.simt.last_wave import WHOLE

ALONE: Final = (False,)


def persisting(
    t: TensorTiling, machine: CudaMachine, cluster: ClusterShape = ONE_BLOCK
) -> Sequence[bool]:
    """Whether blocks of a product may persist: of units of a warp, or whose tiles are boxes.

    Those with rows and sums of one dimension may, stored row by row, if there are more tiles than
    run at once, of several steps each; and, of boxes, whose threads of a unit have all columns of a
    tile, as these are stored in parts.
    """
    p, tile, in_boxes = t.plan.product, t.tile, t.unit.threads > WARP
    is_plain = len(p.rows) == len(p.sums) == 1 and not t.columns_first
    has_rows = tile.column_warps == 1 and tile.columns % PART_COLUMNS == 0
    if in_boxes and not (has_rows and copies_boxes(t, machine)):
        return ALONE
    if not is_plain:
        return ALONE
    counts = stage_counts(t, machine, in_boxes, persists=True)
    most = max((at_once(t, machine, n, cluster) for n in counts), default=0)
    return (False, True) if 0 < most < t.plan.blocks // cluster.blocks else ALONE


def at_once(
    t: TensorTiling, machine: CudaMachine, stages: int, cluster: ClusterShape
) -> int:
    """The clusters of persistent blocks that a machine runs at once."""
    in_boxes = t.unit.threads > WARP
    held = together(t, machine, stages, in_boxes, persists=True)
    return machine.simt.units // cluster.blocks * held


def persists_by_default(
    t: TensorTiling, machine: CudaMachine, cluster: ClusterShape
) -> bool:
    """Whether a product whose tiles are boxes is expected to be faster in persistent blocks."""
    if True not in persisting(t, machine, cluster):
        return False
    usual, other = (box_time(t, machine, cluster, p) for p in (False, True))
    return usual is not None and other is not None and other < usual


def default_time(t: TensorTiling, machine: CudaMachine) -> float | None:
    """Nanoseconds of a product in these tiles, copied as they are by default; None if they do not
    fit the machine."""
    in_boxes = takes_boxes(t, machine)
    _, time = best_tensor_wave(t, machine, in_boxes)
    times = [time, _persistent_time(t, machine) if in_boxes else None]
    return min((found for found in times if found is not None), default=None)


def _persistent_time(t: TensorTiling, machine: CudaMachine) -> float | None:
    """Nanoseconds of a product whose tiles are boxes, in the best cluster, persistent or not."""
    cluster = best_cluster(t, machine)
    persists = persists_by_default(t, machine, cluster)
    return box_time(t, machine, cluster, persists)


def divides_by_default(t: TensorTiling, machine: CudaMachine) -> bool:
    """Whether a product whose tiles are boxes is expected to be faster with a last wave in parts
    than in clusters or in persistent blocks."""
    wave, time = best_tensor_wave(t, machine, True)
    other = _persistent_time(t, machine)
    return wave != WHOLE and time is not None and (other is None or time < other)


def results_in_parts(s: Schedule, target: str, rows: str, column: str) -> str:
    """Read results of a block in parts of its columns from shared memory; the buffer of a part.

    target: the accumulators; rows, column: the loops over the results of a block, at their reader.
    """
    part, own = s.split(column, PART_COLUMNS)
    s.reorder(part, rows, own)
    s.unroll(part)
    return s.cache_read(target, part, "shared")


def persist_blocks(
    s: Schedule,
    t: TensorTiling,
    last: Mapping[Dim, str],
    grid: Sequence[str],
    cluster: ClusterShape,
    count: int,
) -> str:
    """Make blocks of a grid persistent ones; the loop over the tiles of one.

    last: the loops of the results' reader, by dimension. count: the clusters that run at once; only
    as many are made as there have to be, if none has more tiles than with all of them.
    """
    p, loops, own = t.plan.product, list(grid), ""
    for dim, blocks in zip((p.rows[-1], p.columns[0]), cluster, strict=True):
        if blocks > 1:
            loop = f"{last[dim]}.o"
            outer, own = s.split(loop, blocks)
            loops[loops.index(loop)] = outer
            s.reorder(own, *loops)
            s.bind(own, "blockIdx.y")
            s.annotate(own, CLUSTER, blocks)
    fused = fuse_all(s, loops)
    assert fused is not None
    n = extents(s.kernel)[fused]
    _, tiles = s.persist(fused, ceil_div(n, ceil_div(n, count)))
    return tiles


def fetch_next(s: Schedule, tiles: str, fetched: Collection[str]) -> None:
    """Fetch what a block needs first of its next tile before it stores the results of this one.
    Copies are noted as asynchronous, or as boxes, after this."""
    f, _ = find_loop(s.kernel, tiles, "rotate")
    _, body = guarded_body(f.body)
    stmts = sequence(body).stmts
    made = [{b.name for b in writes(x)} for x in stmts]
    touched = []
    for n, x in enumerate(stmts):
        if not {b.name for b in reads(x) | writes(x)}.isdisjoint(fetched):
            touched.append(n)
    start = stop = touched[0]
    while made[stop] <= {*fetched}:
        stop += 1
    s.rotate(tiles, start, stop, touched[-1] + 1)
