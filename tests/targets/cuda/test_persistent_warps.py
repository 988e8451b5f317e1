"""Products by `mma.sync` in persistent blocks: results, races, which there are, what they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.loops.test_clusters import edited, found
from tests.targets.cuda.running import SM80, load_counted
from tests.targets.cuda.test_cluster_tiles import half
from tests.targets.cuda.test_group_tiles import along_rows
from tests.targets.cuda.test_tensor_shared_sums import channels_first
from tests.targets.cuda.test_tensor_tiles import (
    batched,
    launches,
    rounded,
    scheduled,
    turned,
)
from tests.targets.simt.products import Case, arrays, expected, interpreted, product
from tilewright.base.dtypes import int8, int32
from tilewright.base.errors import ExecutionError, ScheduleError
from tilewright.loops.launch import LaunchProgram, Wait
from tilewright.loops.nodes import block
from tilewright.loops.passes.block_memory import BlockMemory
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda import report
from tilewright.targets.cuda.cost import (
    block_bytes,
    factor_rows,
    result_requests,
    time_on_tensor_cores,
)
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import CudaMachine
from tilewright.targets.cuda.persistent_tiles import at_once, persisting
from tilewright.targets.cuda.tensor_choice import WARPS, tiling_of
from tilewright.targets.cuda.tensor_tiles import TensorCores, with_one_column
from tilewright.targets.cuda.tensor_tiling import ONE_BLOCK, TensorTile, TensorTiling
from tilewright.targets.simt.products import product_of
from tilewright.testing.ptx.traffic import AccessKind

TILE, LARGE = TensorTile(32, 32, 32, 2, 1), TensorTile(128, 128, 32, 2, 4)
TINY = TensorTile(16, 32, 16, 1, 1)


def few(units: int, blocks: int = 1) -> CudaMachine:
    """A machine that runs few blocks at once."""
    return replace(SM80, blocks=blocks, rates=SM80.rates._replace(units=units))


def tiled(case: Case, tile: TensorTile = TILE) -> TensorTiling:
    p = product_of(classify(case))
    assert p is not None
    return tiling_of(with_one_column(p), tile, WARPS)


def persistent(
    case: Case, stages: int, of: CudaMachine, tile: TensorTile = TILE
) -> LaunchProgram:
    cores = TensorCores(of, exact=False)
    how = {"tensor_tile": tile, "persists": True, "stages": stages}
    return launches(scheduled(case, cores, **how), of)


# -- results


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "stages", "units", "blocks"),
    [
        (rounded(70, 130, 200), 2, 4, 4),  # ragged; what follows
        (product(70, 130, 200, int8, int32), 3, 2, 2),
        (turned(64, 96, 100), 4, 1, 1),
        (batched(3, 40, 33, 80), 2, 4, 4),
    ],
)
def test_a_product_in_persistent_blocks_is_right(case, stages, units, blocks):
    of = few(units)
    p = persistent(case, stages, of)
    (launch,) = p.launches
    assert launch.grid == (blocks, 1, 1) and blocks < tiled(case).plan.blocks
    given = arrays(p)
    _, (made,) = load_counted(p, of, given)
    assert np.array_equal(made, expected(case, given))


SMALL = half(16, 64, 48)  # two tiles of three steps, in one block


@pytest.fixture(scope="module")
def small():
    p = persistent(SMALL, 2, few(1), TINY)
    given = arrays(p)
    return p, given, expected(SMALL, given)


def test_the_next_tile_is_copied_before_results_are_stored(small):
    p, _, _ = small
    lines = [line.strip() for line in str(p).split("\n")]
    copied = [n for n, x in enumerate(lines) if x.endswith("async:")]
    stored = next(n for n, x in enumerate(lines) if x.startswith("mma.store"))
    multiplied = [n for n, x in enumerate(lines) if x.startswith("mma.bfloat16")]
    assert multiplied[-1] < copied[-1] < stored


@pytest.mark.slow
def test_they_have_no_race(small):
    p, given, want = small
    assert np.array_equal(interpreted(p, dict(given)), want)


def test_a_missing_wait_is_found(small):
    p, given, want = small
    left_out = found(p, Wait)
    assert len(left_out) >= 2
    for s in left_out:
        try:
            _, (made,) = load_counted(edited(p, {s: block()}), SM80, given)
        except (ExecutionError, RuntimeError):
            continue
        assert not np.array_equal(made, want), s


# -- which there are, and the model


def test_blocks_persist_where_there_are_more_tiles_than_run_at_once():
    case = half(128, 128, 128)
    assert persisting(tiled(case), few(15)) == (False, True)
    assert persisting(tiled(case), few(16)) == (False,)
    assert at_once(tiled(case), few(3, 2), 2, ONE_BLOCK) == 6


@pytest.mark.parametrize(
    "case",
    [
        half(128, 128, 32),  # one step
        along_rows(2, 128, 3, 64, 128),  # rows and sums of two dimensions
        channels_first(64, 64, 16),  # stored by columns
    ],
)
def test_others_do_not(case):
    assert persisting(tiled(case), few(1)) == (False,)
    with pytest.raises(ScheduleError, match="persists"):
        how = {"tensor_tile": TILE, "persists": True}
        scheduled(case, TensorCores(few(1), exact=False), **how)


def test_alone_is_the_default_and_such_blocks_have_no_parts():
    cores = TensorCores(few(5), False, any_order=True)
    case = half(128, 128, 256)
    usual = scheduled(case, cores, tensor_tile=TILE, last_wave=(0, 1))
    assert usual.values["mm.persists"] is False
    assert "mm.blocks" in {p.name for p in usual.parameters}
    other = scheduled(case, cores, tensor_tile=TILE, persists=True)
    assert "mm.blocks" not in {p.name for p in other.parameters}
    assert other.values["mm.last_wave"] == (0, 1)


def test_a_block_has_the_memory_and_the_requests_that_the_model_says():
    case, of = half(128, 128, 128), few(1)
    t, p = tiled(case), persistent(case, 2, of)
    held = BlockMemory.of(p.launches[0]).nbytes
    assert held == block_bytes(t, factor_rows(t, of), of, 2, persists=True)
    traffic, _ = load_counted(p, of)
    stored, loaded = result_requests(t, of, persists=True)
    kind = AccessKind("shared", False)
    assert traffic.requests[kind] >= t.plan.blocks * loaded.requests
    assert stored == result_requests(t, of)[0]


def test_the_model_expects_no_gain():
    """Other blocks of a unit hide the time until the first tiles arrive; results that have room of
    their own leave it to fewer blocks."""
    t = tiled(half(4096, 4096, 4096), LARGE)
    usual, other = (time_on_tensor_cores(t, SM80, 3, persists=p) for p in (False, True))
    assert usual is not None and other is not None and usual < other


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_ptxas_holds_a_persistent_block_in_registers():
    p = persistent(half(4096, 4096, 4096), 3, SM80, LARGE)
    (used,) = report.assemble(ptx(p, SM80), SM80)[1].values()
    assert used.registers <= 168
    assert used.stack == used.spill_stores == used.spill_loads == 0
