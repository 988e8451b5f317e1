"""Products in persistent blocks: results, which there are, what they take by the model, faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.loops.test_clusters import edited, found
from tests.targets.cuda.running import load_counted
from tests.targets.cuda.test_cluster_tiles import ACROSS, DOWN, LARGE, ONE, half, tiled
from tests.targets.cuda.test_group_tiles import along_rows
from tests.targets.cuda.test_tensor_tiles import (
    batched,
    launches,
    rounded,
    scheduled,
    turned,
)
from tests.targets.simt.products import Case, arrays, expected
from tilewright.base.errors import ExecutionError
from tilewright.loops.launch import LaunchProgram, Wait
from tilewright.loops.nodes import block
from tilewright.loops.passes.block_memory import BlockMemory, ring_bytes
from tilewright.targets.cuda import cost, report
from tilewright.targets.cuda.cluster_tiles import box_time
from tilewright.targets.cuda.cost import block_bytes, factor_rows, result_requests
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import CudaMachine, machine
from tilewright.targets.cuda.persistent_tiles import (
    at_once,
    default_time,
    persisting,
    persists_by_default,
)
from tilewright.targets.cuda.tensor_choice import GROUPS
from tilewright.targets.cuda.tensor_tiles import TensorCores
from tilewright.targets.cuda.tensor_tiling import ONE_BLOCK, ClusterShape, TensorTile
from tilewright.testing.ptx.traffic import AccessKind

SM90A = machine("sm_90a")


def units(count: int) -> CudaMachine:
    """A machine that runs few blocks at once."""
    return replace(SM90A, rates=SM90A.rates._replace(units=count))


TWO = units(2)


def persistent(
    case: Case,
    tile: TensorTile = ONE,
    cluster: ClusterShape = ONE_BLOCK,
    stages: int = 3,
    of: CudaMachine = TWO,
) -> LaunchProgram:
    how = {"group_tile": tile, "boxes": True, "cluster": cluster, "stages": stages}
    cores = TensorCores(of, False, GROUPS)
    return launches(scheduled(case, cores, persists=True, **how), of)


# -- results


@pytest.mark.sampled(
    2
)  # ragged; along the sum and across it; what follows; a whole unit
@pytest.mark.parametrize(
    ("case", "tile", "cluster", "stages", "blocks"),
    [
        (half(180, 264, 200), ONE, ONE_BLOCK, 3, 3),
        (turned(300, 130, 256), ONE, ONE_BLOCK, 4, 4),
        (rounded(190, 264, 256), ONE, ONE_BLOCK, 2, 5),
        (half(248, 256, 200), ONE, DOWN, 3, 4),
        (half(188, 512, 264), ONE, ACROSS, 3, 4),
        (half(256, 512, 192), LARGE, ONE_BLOCK, 3, 2),
    ],
)
def test_a_product_in_persistent_blocks_is_right(case, tile, cluster, stages, blocks):
    p = persistent(case, tile, cluster, stages)
    (launch,) = p.launches
    x, y, z = launch.grid
    assert x * y * z == blocks < tiled(case, tile).plan.blocks
    assert launch.cluster == (1, cluster.blocks, 1)
    given = arrays(p)
    _, (made,) = load_counted(p, TWO, given)
    assert np.array_equal(made, expected(case, given))


def test_the_next_tile_is_copied_before_results_are_stored():
    """With room of their own; waits leave as many groups in flight as those of one tile do."""
    p = persistent(half(256, 512, 512), LARGE, stages=4)
    (launch,) = p.launches
    assert not launch.places
    lines = [line.strip() for line in str(launch).split("\n")]
    tiles = next(
        n for n, x in enumerate(lines) if x.startswith("for Y") and "in 2" in x
    )
    copied = [n for n, x in enumerate(lines) if x.endswith("bulk:") and n > tiles]
    stored = next(n for n, x in enumerate(lines) if x.startswith("mma.store"))
    multiplied = [n for n, x in enumerate(lines) if x.startswith("wgmma")]
    assert multiplied[-1] < copied[-1] < stored
    step = next(n for n, x in enumerate(lines) if x.startswith("for mm.k.o in"))
    assert lines[step + 1 : step + 4] == [
        "wait bulk 1",
        "wait products 1",
        "barrier shared",
    ]


# -- faults, of a product that wgmma does


SMALL = half(120, 256, 192)  # four tiles of three steps, in two blocks


@pytest.fixture(scope="module")
def small():
    p = persistent(SMALL, of=units(1))
    given = arrays(p)
    return p, given, expected(SMALL, given)


def is_found(small, p: LaunchProgram) -> bool:
    _, given, wanted = small
    try:
        _, (made,) = load_counted(p, TWO, given)
    except (ExecutionError, RuntimeError):
        return True
    return not np.array_equal(made, wanted)


@pytest.mark.parametrize("of", ["bulk", "products"])
def test_a_missing_wait_is_found(small, of):
    p, _, _ = small
    waits = [s for s in found(p, Wait) if s.of == of]
    assert len(waits) >= 2
    for left_out in waits:
        assert is_found(small, edited(p, {left_out: block()})), (left_out, str(p))


def test_results_in_the_room_of_the_next_tile_are_found(small):
    p, _, _ = small
    (launch,) = p.launches
    apart = {launch.shared[0]: 0, launch.shared[1]: 3 * 128 * 128, launch.shared[2]: 0}
    over = replace(launch, places=apart)
    assert is_found(small, replace(p, launches=(over,)))


# -- which there are, and the model


def test_blocks_persist_where_there_are_more_tiles_than_run_at_once():
    few, many = tiled(half(256, 512, 512)), tiled(half(2048, 2048, 512))
    assert (
        persisting(few, TWO, ONE_BLOCK)
        == persisting(many, SM90A, ONE_BLOCK)[:2]
        == (False, True)
    )
    assert persisting(few, SM90A, ONE_BLOCK) == (False,)


@pytest.mark.parametrize(
    "case",
    [
        batched(3, 512, 512, 512)[:0]
        or half(2048, 2052, 512),  # rows are no multiples of 16 bytes
        half(2048, 2048, 64),  # one step
        along_rows(2, 128, 1, 128, 256),  # rows of two dimensions
    ],
)
def test_others_do_not(case):
    assert persisting(tiled(case), TWO, ONE_BLOCK) == (False,)


def test_threads_that_have_a_part_of_the_columns_do_not():
    t = tiled(half(2048, 2048, 512), TensorTile(64, 256, 64, 1, 2))
    assert persisting(t, TWO, ONE_BLOCK) == (False,)


def test_a_block_has_the_memory_that_the_model_says():
    t = tiled(half(256, 512, 512), LARGE)
    p = persistent(half(256, 512, 512), LARGE, stages=4)
    memory = BlockMemory.of(p.launches[0])
    held = factor_rows(t, TWO)
    whole = block_bytes(t, held, TWO, 4, True, persists=True)
    assert memory.ring <= 4
    assert memory.nbytes + ring_bytes(4 - memory.ring) == whole <= TWO.simt.shared
    assert at_once(t, TWO, 4, ONE_BLOCK) == 2
    assert at_once(t, TWO, 4, DOWN) == 1
    assert at_once(t, units(1), 4, DOWN) == 0


def test_requests_for_results_are_those_of_the_closed_form():
    case = half(256, 256, 128)
    t, p = tiled(case), persistent(case, stages=2, of=units(1))
    traffic, _ = load_counted(p, TWO)
    for is_stored, asked in zip(
        (True, False), result_requests(t, TWO, True), strict=True
    ):
        kind = AccessKind("shared", is_stored)
        assert traffic.requests[kind] == t.plan.blocks * asked.requests
        assert traffic.turns[kind] == t.plan.blocks * asked.requests * asked.turns


def test_the_first_tiles_of_later_results_are_no_wait():
    """They arrive while results are stored, part by part, between which threads meet."""
    t = tiled(half(8192, 8192, 512), LARGE)
    usual, other = (box_time(t, SM90A, DOWN, p) for p in (False, True))
    tiles = 8192 // 128 * 8192 // 256
    waves = -(-tiles // 132)
    meetings = 2 * cost.SYNC * 256 // 64
    assert usual - other == pytest.approx((waves - 1) * cost.LATENCY - waves * meetings)


def test_blocks_persist_by_default_where_the_model_expects_a_gain(monkeypatch):
    case = half(8192, 8192, 512)
    t = tiled(case, LARGE)
    assert persists_by_default(t, SM90A, DOWN)
    assert default_time(t, SM90A) == box_time(t, SM90A, DOWN, True)
    cores = TensorCores(SM90A, False, GROUPS)
    chosen = {x.name: x.value for x in scheduled(case, cores).parameters}
    assert chosen["mm.persists"] is True and chosen["mm.cluster"] == DOWN
    assert not persists_by_default(tiled(half(4096, 4096, 4096), ONE), SM90A, ONE_BLOCK)
    monkeypatch.setattr(cost, "LATENCY", 0.0)
    assert not persists_by_default(t, SM90A, DOWN)


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize(
    ("case", "least", "most"),
    [(half(4096, 4096, 4096), 150, 180), (turned(8192, 8192, 512), 150, 180)],
)
def test_ptxas_holds_a_persistent_block_in_registers(case, least, most):
    point = scheduled(case, TensorCores(SM90A, False, GROUPS))
    assert {x.name: x.value for x in point.parameters}["mm.persists"] is True
    p = launches(point, SM90A)
    (launch,) = p.launches
    assert launch.grid == (64, 2, 1) and launch.cluster == (1, 2, 1)
    (used,) = report.assemble(ptx(p, SM90A), SM90A)[1].values()
    assert least <= used.registers <= most
    assert used.stack == used.spill_stores == used.spill_loads == 0
    assert not used.is_serialized
