"""The last wave of products on tensor cores in parts: results, faults, decisions, counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.targets.cuda.running import SM80, load_counted
from tests.targets.cuda.test_cluster_tiles import DOWN, LARGE, ONE, SM90A, half
from tests.targets.cuda.test_tensor_convolutions import convolution
from tests.targets.cuda.test_tensor_tiles import (
    batched,
    launches,
    rounded,
    scheduled,
    turned,
)
from tests.targets.simt.products import Case, arrays, expected, interpreted, product
from tilewright.base.dtypes import bfloat16, float16, float32, int8, int32
from tilewright.base.errors import ScheduleError
from tilewright.loops.launch import LaunchProgram
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda import report
from tilewright.targets.cuda.cost import best_rows, operand_requests, result_requests
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import CudaMachine, machine
from tilewright.targets.cuda.persistent_tiles import default_time, divides_by_default
from tilewright.targets.cuda.tensor_choice import (
    GROUPS,
    WARPS,
    UnitKind,
    tensor_tiles,
    tiling_of,
)
from tilewright.targets.cuda.tensor_tiles import TensorCores, with_one_column
from tilewright.targets.cuda.tensor_tiling import (
    ONE_BLOCK,
    TensorTile,
    TensorTiling,
)
from tilewright.targets.cuda.tensor_waves import best_tensor_wave, tensor_waves
from tilewright.targets.simt.cost import SECTOR
from tilewright.targets.simt.last_wave import WHOLE, LastWave, shares, workspace_bytes
from tilewright.targets.simt.products import product_of
from tilewright.testing.ptx.traffic import AccessKind

SMALL = TensorTile(32, 32, 32, 2, 1)


def few(of: CudaMachine, units: int) -> CudaMachine:
    """A machine that runs few blocks at a time."""
    return replace(of, rates=of.rates._replace(units=units))


FIVE80, FIVE90 = few(SM80, 5), few(SM90A, 5)


def work_in(case: Case, tile: TensorTile, kind: UnitKind) -> TensorTiling:
    p = product_of(classify(case))
    assert p is not None
    return tiling_of(with_one_column(p), tile, kind)


def on_warps(case: Case, wave: LastWave, **how: object) -> LaunchProgram:
    cores = TensorCores(FIVE80, exact=False)
    how = {"tensor_tile": SMALL, "last_wave": wave, **how}
    return launches(scheduled(case, cores, **how), FIVE80)


def on_groups(case: Case, wave: LastWave, in_boxes: bool) -> LaunchProgram:
    how = {"group_tile": ONE, "boxes": in_boxes, "last_wave": wave, "stages": 3}
    if in_boxes:
        how |= {"cluster": ONE_BLOCK, "persists": False}
    return launches(scheduled(case, TensorCores(FIVE90, False, GROUPS), **how), FIVE90)


def check(p: LaunchProgram, case: Case, of: CudaMachine) -> None:
    assert len(p.launches) == 3
    given = arrays(p)
    _, (made,) = load_counted(p, of, given)
    assert np.array_equal(made, expected(case, given))


# -- results, as PTX


@pytest.mark.sampled(2)  # what follows, ragged; integers
@pytest.mark.parametrize(
    ("case", "wave", "stages"),
    [
        (rounded(70, 90, 100), LastWave(4, 2), 2),
        (product(70, 90, 200, int8, int32), LastWave(4, 4), 1),
        (turned(70, 40, 200), LastWave(1, 7), 3),
    ],
)
def test_a_last_wave_of_warps_is_right(case, wave, stages):
    check(on_warps(case, wave, stages=stages), case, FIVE80)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "tile", "units", "wave"),
    [
        (convolution(9, 40, 9, 3), (64, 32, 16, 4, 1), 2, LastWave(1, 3)),
        (convolution(9, 40, 9, 3, first=True), (64, 32, 16, 4, 1), 2, LastWave(1, 2)),
        (
            convolution(9, 70, 40, 3, 1, int8, first=True),
            (32, 32, 32, 2, 1),
            6,
            LastWave(4, 3),
        ),
        (
            convolution(7, 40, 33, 3, 1, bfloat16, 2, first=True),
            (32, 64, 16, 1, 4),
            5,
            LastWave(3, 3),
        ),
        (batched(3, 17, 33, 50), (16, 32, 16, 1, 1), 8, LastWave(4, 4)),
        (convolution(11, 40, 9, 3, 2), (32, 32, 16, 2, 1), 2, LastWave(1, 3)),
        (convolution(6, 35, 9, 3, dilation=2), (32, 32, 16, 2, 1), 2, LastWave(1, 3)),
        (
            convolution(11, 35, 9, 3, 2, first=True, dilation=2),
            (32, 32, 16, 2, 1),
            2,
            LastWave(1, 3),
        ),
        (
            convolution(5, 40, 9, 3, 1, float16, 3),
            (32, 32, 16, 2, 1),
            2,
            LastWave(1, 3),
        ),
    ],
)
def test_channels_of_a_convolution_and_a_batch_may_be_in_parts(case, tile, units, wave):
    of = few(SM80, units)
    how = {"tensor_tile": tile, "last_wave": wave}
    p = launches(scheduled(case, TensorCores(of, exact=False), **how), of)
    check(p, case, of)


@pytest.mark.sampled(2)  # boxes; copies by threads
@pytest.mark.parametrize("in_boxes", [True, False])
@pytest.mark.parametrize(
    ("case", "wave"),
    [
        (rounded(180, 264, 328), LastWave(4, 2)),
        (half(190, 264, 384), LastWave(4, 3)),
    ],
)
def test_a_last_wave_of_warp_groups_is_right(case, wave, in_boxes):
    check(on_groups(case, wave, in_boxes), case, FIVE90)


@pytest.fixture(scope="module")
def tiny():
    """Four tiles of a warp, of which the last one is in two parts."""
    case, of = rounded(17, 34, 17), few(SM80, 3)
    how = {"tensor_tile": (16, 32, 16, 1, 1), "last_wave": LastWave(1, 2)}
    p = launches(scheduled(case, TensorCores(of, exact=False), **how), of)
    assert [x.grid[:2] for x in p.launches[:2]] == [(3, 1), (2, 1)]
    given = arrays(p)
    return p, given, expected(case, given)


@pytest.mark.slow
def test_it_has_no_race(tiny):
    p, given, want = tiny
    assert np.array_equal(interpreted(p, dict(given)), want)


# -- faults


@pytest.mark.parametrize("order", [(0, 1), (0, 2), (1, 2), (0, 2, 1), (0, 1, 2)])
def test_a_launch_that_is_left_out_or_too_early_is_found(tiny, order):
    p, given, want = tiny
    wrong = replace(p, launches=tuple(p.launches[n] for n in order))
    _, (made,) = load_counted(wrong, SM80, given)
    assert np.array_equal(made, want) == (order == (0, 1, 2))


# -- what the model counts


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("case", "tile", "parts"),
    [
        (product(64, 96, 128, float16, float32), TensorTile(32, 32, 32, 2, 1), 4),
        (product(64, 96, 192, int8, int32), TensorTile(32, 32, 64, 2, 1), 3),
    ],
)
def test_requests_turns_and_products_are_those_of_the_closed_forms(case, tile, parts):
    """Of the full waves and of the parts as of other tiles, but that a part's results are read from
    shared memory once more than the results are stored: into the workspace, which is read once."""
    wave = LastWave(1, parts)
    p = on_warps(case, wave, tensor_tile=tile, stages=1)
    found, _ = load_counted(p, FIVE80)
    t = work_in(case, tile, WARPS)
    plans = shares(t.plan, wave)
    assert [x.grid[0] * x.grid[1] for x in p.launches[:2]] == [s.blocks for s in plans]
    blocks, steps = (
        sum(s.blocks for s in plans),
        sum(s.blocks * s.steps for s in plans),
    )
    factors = t.plan.product.left, t.plan.product.right
    rows = {x: best_rows(t, x, FIVE80) for x in factors}
    fetched, stored, loaded = zip(
        *(operand_requests(t, x, r, FIVE80) for x, r in rows.items()), strict=True
    )
    first, last = result_requests(t, FIVE80)
    work = workspace_bytes(t.plan, wave)
    for kind, of_steps, of_blocks, words in (
        (AccessKind("global", False), fetched, (), work // 4),
        (AccessKind("shared", True), stored, (first,), 0),
        (AccessKind("shared", False), loaded, (last,), 0),
    ):
        asked = [(steps, r) for r in of_steps] + [(blocks, r) for r in of_blocks]
        requests = sum(n * r.requests for n, r in asked) + words // 32
        turns = sum(n * r.requests * r.turns for n, r in asked) + words * 4 // SECTOR
        assert (found.requests[kind], found.turns[kind]) == (requests, turns)
    results = 64 * 96 * 4
    assert found.turns[AccessKind("global", True)] == (results + work) // SECTOR
    assert found.products == steps * t.products


# -- which there are, and the model


@pytest.mark.parametrize("of", [SM80, SM90A])
def test_the_forms_that_are_not_looked_at_would_not_be_the_fastest(of):
    divided = 0
    for sizes in ((1664, 2816, 8192), (640, 500, 1024), (2560, 2560, 8192)):
        p = product_of(classify(half(*sizes)))
        for tile in tensor_tiles(p, of, WARPS)[:8]:
            t = tiling_of(p, tile, WARPS)
            fastest = tensor_waves(t, of)[0]
            assert best_tensor_wave(t, of)[0] == fastest
            divided += fastest != WHOLE
    assert divided >= 4


def test_others_have_no_such_wave():
    """Clusters and persistent blocks; and parts of two steps whose last one is not whole are no
    boxes."""
    case = half(190, 264, 320)
    t = work_in(case, ONE, GROUPS)
    assert {w.parts for w in tensor_waves(t, FIVE90, True)} == {1, 2, 5}
    assert {w.parts for w in tensor_waves(t, FIVE90, False)} == {1, 2, 3, 5}
    how = {"group_tile": ONE, "boxes": True}
    two = TensorCores(few(SM90A, 2), False, GROUPS)  # nine tiles, of which one is left
    with pytest.raises(ScheduleError, match="last_wave"):
        own = {"cluster": ONE_BLOCK, "persists": True, "last_wave": LastWave(1, 2)}
        scheduled(case, two, **how, **own)
    five = TensorCores(FIVE90, False, GROUPS)  # twelve tiles, of which two are left
    with pytest.raises(ScheduleError, match="last_wave"):
        own = {"cluster": DOWN, "persists": False, "last_wave": LastWave(2, 2)}
        scheduled(half(248, 264, 320), five, **how, **own)


# By sizes and machine: the tiles that `mma.sync` and `wgmma` have by default, the last wave, and
# whether that is the default for boxes, which may be in clusters and persist instead.
GOLDEN = {
    (1664, 2816, 8192): {
        "sm_80": [(286, WHOLE, False)],
        "sm_90a": [(286, LastWave(22, 6), False), (143, LastWave(11, 8), True)],
    },
    (1664, 2816, 16384): {
        "sm_80": [(286, LastWave(70, 3), False)],
        "sm_90a": [(286, LastWave(22, 6), False), (143, LastWave(11, 8), True)],
    },
    (2560, 2560, 8192): {
        "sm_80": [(400, WHOLE, False)],
        "sm_90a": [(400, LastWave(4, 8), False), (200, WHOLE, False)],
    },
    (4096, 4096, 4096): {
        "sm_80": [(1024, WHOLE, False)],
        "sm_90a": [(1024, WHOLE, False), (512, WHOLE, False)],
    },
}


@pytest.mark.parametrize("sizes", GOLDEN)
def test_the_decision_is_the_golden_one(sizes):
    p = product_of(classify(half(*sizes)))
    for name, wanted in GOLDEN[sizes].items():
        of, found = machine(name), []
        for kind in (WARPS, GROUPS)[: len(wanted)]:
            t = tiling_of(p, tensor_tiles(p, of, kind)[0], kind)
            in_boxes = kind is GROUPS
            wave, _ = best_tensor_wave(t, of, in_boxes)
            divides = in_boxes and divides_by_default(t, of)
            found.append((t.plan.blocks, wave, divides))
        assert found == wanted


def test_it_is_the_default_where_the_model_expects_a_gain():
    case = half(1664, 2816, 8192)
    point = scheduled(case, TensorCores(SM90A, False, GROUPS))
    chosen = {x.name: x.value for x in point.parameters}
    assert chosen["mm.last_wave"] == LastWave(11, 8)
    assert chosen["mm.cluster"] == ONE_BLOCK and chosen["mm.persists"] is False
    t = work_in(case, LARGE, GROUPS)
    assert default_time(t, SM90A) == best_tensor_wave(t, SM90A, True)[1]
    assert best_tensor_wave(t, few(SM90A, 143), True)[0] == WHOLE


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_ptxas_holds_parts_in_registers():
    case = half(1664, 2816, 8192)
    p = launches(scheduled(case, TensorCores(SM90A, False, GROUPS)), SM90A)
    assert [x.grid[:2] for x in p.launches[:2]] == [(132, 1), (8, 11)]
    used = report.assemble(ptx(p, SM90A), SM90A)[1]
    full, parts, added = (used[launch.name] for launch in p.launches)
    for launch in (full, parts):
        assert 140 <= launch.registers <= 190
        assert launch.stack == launch.spill_stores == launch.spill_loads == 0
        assert not launch.is_serialized
    assert added.registers <= 40
