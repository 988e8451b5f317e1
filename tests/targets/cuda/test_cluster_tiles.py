"""Products whose blocks are clusters: which there are, what they take by the model, and results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.targets.cuda.running import load_counted
from tests.targets.cuda.test_group_tiles import CORES, along_rows, work_of
from tests.targets.cuda.test_tensor_tiles import (
    batched,
    launches,
    rounded,
    scheduled,
    turned,
)
from tests.targets.simt.products import Case, arrays, expected, product
from tilewright.base.dtypes import bfloat16, float32
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer, Cast
from tilewright.targets.cuda import cost, report
from tilewright.targets.cuda.cluster_tiles import best_cluster, cluster_shapes
from tilewright.targets.cuda.cost import (
    best_stages,
    operand_requests,
    time_on_tensor_cores,
)
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.tensor_choice import GROUPS, tiling_of
from tilewright.targets.cuda.tensor_tiling import (
    ONE_BLOCK,
    ClusterShape,
    RowLayout,
    TensorTile,
    TensorTiling,
)

SM90A = machine("sm_90a")
ONE = TensorTile(64, 128, 64, 1, 1)
LARGE = TensorTile(128, 256, 64, 2, 1)
DOWN, ACROSS = ClusterShape(2, 1), ClusterShape(1, 2)


def half(m: int, n: int, k: int) -> Case:
    return product(m, n, k, bfloat16, float32)


def tiled(case: Case, tile: TensorTile = ONE) -> TensorTiling:
    return tiling_of(work_of(case), tile, GROUPS)


# -- results


@pytest.mark.sampled(
    2
)  # either factor, ragged; along the sum and across it; what follows
@pytest.mark.parametrize(
    ("case", "cluster", "stages"),
    [
        (half(120, 120, 200), DOWN, 3),
        (half(60, 248, 200), ACROSS, 3),
        (turned(120, 130, 256), DOWN, 4),
        (turned(60, 250, 256), ACROSS, 2),
        (rounded(120, 248, 128), ACROSS, 1),
        (batched(2, 120, 120, 136), DOWN, 3),
    ],
)
def test_a_product_in_clusters_is_right(case, cluster, stages):
    how = {"group_tile": ONE, "boxes": True, "cluster": cluster, "stages": stages}
    p = launches(scheduled(case, CORES, **how), SM90A)
    (launch,) = p.launches
    assert launch.cluster == (cluster.columns, cluster.rows, 1)
    given = arrays(p)
    _, (made,) = load_counted(p, SM90A, given)
    assert np.array_equal(made, expected(case, given))


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_the_default_of_a_large_product_has_no_spills():
    point = scheduled(half(4096, 4096, 4096), CORES)
    chosen = {x.name: x.value for x in point.parameters}
    assert chosen["mm.cluster"] == DOWN and chosen["mm.group_tile"] == LARGE
    p = launches(point, SM90A)
    (used,) = report.assemble(ptx(p, SM90A), SM90A)[1].values()
    assert used.spill_stores == used.stack == 0 and not used.is_serialized
    assert 140 <= used.registers <= 170


# -- which there are


def test_whole_clusters_divide_the_blocks_along_a_side():
    assert cluster_shapes(tiled(half(128, 256, 128)), SM90A) == [
        ONE_BLOCK,
        DOWN,
        ACROSS,
    ]
    assert cluster_shapes(tiled(half(128, 384, 128)), SM90A) == [ONE_BLOCK, DOWN]
    assert cluster_shapes(tiled(half(192, 256, 128)), SM90A) == [ONE_BLOCK, ACROSS]
    assert cluster_shapes(tiled(half(64, 128, 128)), SM90A) == [ONE_BLOCK]


def test_tiles_that_threads_copy_have_no_clusters():
    assert cluster_shapes(tiled(half(128, 260, 128)), SM90A) == [ONE_BLOCK]
    assert cluster_shapes(tiled(half(128, 256, 128)), machine("sm_80")) == [ONE_BLOCK]
    point = scheduled(half(128, 256, 128), CORES, group_tile=ONE, boxes=False)
    assert "mm.cluster" not in {x.name for x in point.parameters}


def test_rows_of_several_dimensions_and_windows_have_no_clusters():
    case = along_rows(2, 128, 1, 128, 256)
    assert len(work_of(case).rows) == 2
    assert cluster_shapes(tiled(case), SM90A) == [ONE_BLOCK]
    window = along_rows(1, 128, 3, 128, 256)
    assert cluster_shapes(tiled(window), SM90A) == [ONE_BLOCK]


def test_the_loops_over_their_blocks_are_axes_of_the_grid():
    assert cluster_shapes(tiled(batched(2, 128, 256, 128)), SM90A)[1:] == [DOWN, ACROSS]
    a, b = (Buffer(n, (2, 2, 128, 128), bfloat16) for n in "AB")
    y = Buffer("Y", (2, 2, 128, 128), float32)
    deeper = reduce_(
        "mm",
        y,
        (128,),
        "add",
        lambda c, d, i, j, k: (
            Cast(a[c, d, i, k], float32) * Cast(b[c, d, k, j], float32)
        ),
    )
    assert cluster_shapes(tiled([deeper]), SM90A) == [ONE_BLOCK]


# -- the model


@pytest.mark.parametrize("cluster", [ONE_BLOCK, DOWN, ACROSS])
def test_the_bytes_of_the_model_are_what_the_interpreter_counts(cluster):
    case = half(128, 256, 192)
    t, p = tiled(case), work_of(case)
    moved = 0
    for read, sharing in ((p.left, cluster.columns), (p.right, cluster.rows)):
        fetched, *_ = operand_requests(t, read, RowLayout(0, True), SM90A)
        moved += fetched.requests * fetched.turns * cost.SECTOR // sharing
    how = {"group_tile": ONE, "boxes": True, "cluster": cluster, "stages": 2}
    program = launches(scheduled(case, CORES, **how), SM90A)
    traffic, _ = load_counted(program, SM90A)
    assert traffic.boxes == t.plan.blocks * t.plan.steps * moved


def test_a_large_product_is_expected_to_be_faster_in_clusters():
    """The tensor cores are the limit then, and no more the cache that all units share."""
    t = tiled(half(4096, 4096, 4096), LARGE)
    times = {}
    for cluster in (ONE_BLOCK, DOWN):
        stages = best_stages(t, SM90A, True, cluster)
        times[cluster] = time_on_tensor_cores(t, SM90A, stages, True, cluster)
    assert times[DOWN] < 0.9 * times[ONE_BLOCK]
    assert CORES.time(work_of(half(4096, 4096, 4096))) <= times[DOWN]
    assert best_cluster(t, SM90A) == DOWN


def test_the_larger_factor_is_the_better_one_to_share():
    """Where the cache is the limit: blocks that are neighbors down share the columns' factor."""
    slow = replace(SM90A, rates=SM90A.rates._replace(cache=100.0))
    t = tiled(half(4096, 4096, 4096), LARGE)
    down, across = (time_on_tensor_cores(t, slow, 3, True, c) for c in (DOWN, ACROSS))
    bytes_ = {DOWN: 128 + 256 / 2, ACROSS: 128 / 2 + 256}
    assert down / across == pytest.approx(bytes_[DOWN] / bytes_[ACROSS], rel=1e-3)


def test_blocks_stay_alone_where_their_meetings_take_too_long(monkeypatch):
    case = half(4096, 4096, 4096)
    monkeypatch.setattr(cost, "CLUSTER_SYNC", 2000.0)
    assert best_cluster(tiled(case, LARGE), SM90A) == ONE_BLOCK
    chosen = {x.name: x.value for x in scheduled(case, CORES).parameters}
    assert chosen["mm.boxes"] is True and chosen["mm.cluster"] == ONE_BLOCK


def test_a_step_that_does_not_overlap_the_next_one_takes_the_meeting_as_well():
    t = tiled(half(256, 256, 512))
    quick = replace(SM90A, rates=SM90A.rates._replace(cache=1e9))
    alone, together = (
        time_on_tensor_cores(t, quick, 1, True, cluster)
        for cluster in (ONE_BLOCK, DOWN)
    )
    assert t.plan.blocks < SM90A.simt.units
    assert together == pytest.approx(alone + t.plan.steps * cost.CLUSTER_SYNC)


def test_units_that_are_no_whole_cluster_have_no_blocks():
    t = tiled(half(128, 1536, 4096), LARGE)  # six blocks
    times = {}
    for units in (1, 2, 3):
        rates = SM90A.rates._replace(units=units, cache=1e9)
        few = replace(SM90A, rates=rates)
        times[units] = time_on_tensor_cores(t, few, 3, True, ACROSS)
    assert times[1] is None
    assert times[3] == times[2]
