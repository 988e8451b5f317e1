"""Clusters of blocks of a product on tensor cores: neighbors that need the same tile of a factor.

Each block copies a part of that tile into the memory of all (`loops/passes/clusters.py`), so that
fewer bytes come from the cache that all units share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import Dim
from tilewright.loops.nodes import CLUSTER
from tilewright.schedule import Schedule
from tilewright.targets.cuda.box_tiles import copies_boxes
from tilewright.targets.cuda.cost import best_stages, boxes_pay, time_on_tensor_cores
from tilewright.targets.cuda.machine import CudaMachine
from tilewright.targets.cuda.tensor_tiling import ONE_BLOCK, ClusterShape, TensorTiling

SHAPES: Final = (ClusterShape(2, 1), ClusterShape(1, 2))
AXES: Final = 3  # of a grid: loops over more dimensions become one


def takes_boxes(t: TensorTiling, machine: CudaMachine) -> bool:
    """Whether tiles are copied as boxes by default. Which parts of a window are boxes is only seen
    when these are noted."""
    is_plain = len(t.plan.product.sums) == 1
    return is_plain and copies_boxes(t, machine) and boxes_pay(t, machine)


def cluster_shapes(t: TensorTiling, machine: CudaMachine) -> list[ClusterShape]:
    """The clusters that a product in these tiles may have; in all of them its tiles are boxes.

    Only products of one dimension of rows have some: the outermost side of a box is then that of a
    tile, of whole patterns of rows for each block. As many blocks as a cluster has along a side
    divide those of the grid.
    """
    p = t.plan.product
    is_plain = len(p.rows) == len(p.sums) == 1 and len(p.batch) < AXES - 1
    if not is_plain or not copies_boxes(t, machine):
        return [ONE_BLOCK]
    rows, columns = (_blocks(t, side[0]) for side in (p.rows, p.columns))
    able = [s for s in SHAPES if rows % s.rows == 0 and columns % s.columns == 0]
    return [ONE_BLOCK, *able]


def _blocks(t: TensorTiling, dim: Dim) -> int:
    """Blocks along a dimension."""
    return ceil_div(dim.extent, t.plan.shares[dim].size)


def best_cluster(t: TensorTiling, machine: CudaMachine) -> ClusterShape:
    """The cluster with which a product whose tiles are boxes is expected to be fastest."""

    def time(cluster: ClusterShape) -> float:
        return box_time(t, machine, cluster) or math.inf

    return min(cluster_shapes(t, machine), key=time)


def box_time(
    t: TensorTiling,
    machine: CudaMachine,
    cluster: ClusterShape,
    persists: bool = False,
) -> float | None:
    """Nanoseconds of a product whose tiles are boxes, with the best number of these; None if they
    do not fit the machine."""
    stages = best_stages(t, machine, True, cluster, persists)
    return time_on_tensor_cores(t, machine, stages, True, cluster, persists)


def note_cluster(
    s: Schedule,
    t: TensorTiling,
    last: Mapping[Dim, str],
    cluster: Sequence[int],
) -> None:
    """Note at a loop over blocks that its neighbors are a cluster. last: the loops of the results'
    reader, by dimension."""
    p = t.plan.product
    sides = (p.rows[-1], p.columns[0])
    for dim, count in zip(sides, cluster, strict=True):
        if count > 1:
            s.annotate(f"{last[dim]}.o", CLUSTER, count)
