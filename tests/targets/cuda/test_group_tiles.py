"""Products by groups of four warps by default: right at every size, counted, and chosen."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.cuda.running import load_counted
from tests.targets.cuda.test_tensor_convolutions import convolution
from tests.targets.cuda.test_tensor_tiles import launches, rounded, scheduled, turned
from tests.targets.simt.products import Case, arrays, expected, product
from tilewright.base.dtypes import bfloat16, float16, float32
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer, Cast
from tilewright.loops.passes.block_memory import BlockMemory
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda import report
from tilewright.targets.cuda.cost import (
    best_rows,
    best_stages,
    block_bytes,
    factor_rows,
    operand_requests,
)
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.cuda.tensor_choice import (
    GROUPS,
    WARPS,
    is_turned,
    tensor_tiles,
    tiling_of,
)
from tilewright.targets.cuda.tensor_tiles import TensorCores, with_one_column
from tilewright.targets.cuda.tensor_tiling import TensorTile
from tilewright.targets.simt.products import Product, product_of
from tilewright.testing.ptx.traffic import AccessKind
from tilewright.testing.random_kernels import plain

SM90A = machine("sm_90a")
CORES = TensorCores(SM90A, exact=False, kind=GROUPS)
ONE = (64, 128, 64, 1, 1)


def along_rows(rows: int, size: int, window: int, channels: int, filters: int) -> Case:
    """A convolution along rows, channels last."""
    a = Buffer("A", (rows, size + window - 1, channels), float16)
    b = Buffer("B", (window, channels, filters), float16)
    y = Buffer("Y", (rows, size, filters), float32)
    return [
        reduce_(
            "mm",
            y,
            (window, channels),
            "add",
            lambda i, j, f, v, c: (
                Cast(a[i, j + v, c], float32) * Cast(b[v, c, f], float32)
            ),
        )
    ]


CASES = {
    "turned": (turned(60, 140, 128), ONE, 2),
    "columns in blocks": (product(60, 120, 72, bfloat16, float32), ONE, 1),
    "two groups": (rounded(120, 136, 64), (128, 256, 64, 2, 1), 1),
    "side by side": (product(70, 200, 64, float16, float32), (64, 256, 64, 1, 2), 1),
    "convolution": (along_rows(2, 64, 2, 64, 128), (128, 128, 64, 2, 1), 2),
}


def work_of(case: Case) -> Product:
    found = product_of(classify(case))
    assert found is not None
    return with_one_column(found)


@pytest.mark.sampled(2)  # factors turned or not; one group, or several
@pytest.mark.parametrize("name", CASES)
def test_a_product_is_right_as_ptx(name):
    """Tiles are copied by threads here, and as boxes in `test_boxes.py`."""
    case, tile, stages = CASES[name]
    point = scheduled(case, CORES, group_tile=tile, stages=stages, boxes=False)
    p = launches(point, SM90A)
    given = arrays(p)
    traffic, (made,) = load_counted(p, SM90A, given)
    assert traffic.group_products and not traffic.products
    assert np.array_equal(made, expected(case, given))


@pytest.mark.parametrize(
    "case", [turned(128, 256, 128), product(128, 256, 128, float16, float32)]
)
def test_the_terms_of_the_model_are_what_the_interpreter_counts(case):
    """Of whole tiles."""
    p = work_of(case)
    t = tiling_of(p, TensorTile(*ONE), GROUPS)
    point = scheduled(case, CORES, group_tile=ONE, stages=1, boxes=False)
    program = launches(point, SM90A)
    traffic, _ = load_counted(program, SM90A, arrays(program))
    times = t.plan.blocks * t.plan.steps
    assert traffic.group_products == times * t.products
    fetched = requests = turns = 0
    for read in (p.left, p.right):
        rows = best_rows(t, read, SM90A)
        fetch, store, read_by_unit = operand_requests(t, read, rows, SM90A)
        assert fetch.memory == "global" and store.memory == "shared"
        fetched += fetch.requests
        requests += store.requests
        turns += store.requests * store.turns
        side = t.unit.rows if read is p.left else t.unit.columns
        assert read_by_unit.turns == side * 128 // 128
    assert traffic.requests[AccessKind("global", False)] == times * fetched
    results = t.plan.blocks * t.tile.rows * t.tile.columns // 32
    assert traffic.requests[AccessKind("shared", True)] == times * requests + results
    assert traffic.requests[AccessKind("shared", False)] == results
    assert traffic.turns[AccessKind("shared", True)] >= times * turns


def test_columns_are_in_blocks_where_rows_go_across_the_sum():
    wide, blocks = (
        work_of(turned(128, 256, 128)),
        work_of(product(128, 256, 128, float16, float32)),
    )
    for p, is_across in ((wide, False), (blocks, True)):
        t = tiling_of(p, tensor_tiles(p, SM90A, GROUPS)[0], GROUPS)
        assert (t.unit.columns, t.unit.in_blocks) == (128, is_across)
        assert is_turned(t, p.right) == is_across


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (product(64, 64, 64, float32, float32), "no instruction for float32"),
        (convolution(9, 64, 128, 3), "no tile fits"),  # 9 places in a row
        (convolution(96, 64, 128, 3, 2), "no tile fits"),  # every second place
    ],
)
def test_what_they_cannot_do_is_refused_with_the_reason(case, why):
    found = product_of(classify(case))
    assert found is not None
    assert why in CORES.refusal(found)
    assert CORES.with_sketch([], plain(case), case) == []


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "sm_100a"])
def test_only_one_architecture_has_them(name):
    p = product_of(classify(product(1024, 1024, 1024, bfloat16, float32)))
    cores = TensorCores(machine(name), False, GROUPS)
    assert cores.refusal(p) == f"{name} has no cuda.wgmma.bfloat16.64: it needs sm_90a"


def test_they_are_chosen_where_they_are_expected_to_be_faster():
    def first(case: Case, of: str = "sm_90a") -> str:
        return Cuda(machine(of), False).sketches(plain(case), case, ())[0].name

    large = product(4096, 4096, 4096, bfloat16, float32)
    assert first(large) == GROUPS.name
    assert first(large, "sm_90") == first(large, "sm_80") == WARPS.name
    assert first(product(64, 4096, 4096, bfloat16, float32)) == WARPS.name


@pytest.mark.parametrize("boxes", [False, True])
def test_results_are_in_the_room_of_the_tiles(boxes):
    """Once all products are over, which threads wait for and meet behind."""
    case = product(64, 128, 192, bfloat16, float32)
    point = scheduled(case, CORES, group_tile=ONE, stages=3, boxes=boxes)
    (launch,) = launches(point, SM90A).launches
    t = tiling_of(work_of(case), TensorTile(*ONE), GROUPS)
    tiles = 3 * (64 + 128) * 128
    assert block_bytes(t, factor_rows(t, SM90A), SM90A, 3) == tiles
    memory = BlockMemory.of(launch)
    assert memory.nbytes == tiles + 8 * memory.ring
    assert (0 < memory.ring <= 3) == boxes
    assert memory.nbytes <= block_bytes(t, factor_rows(t, SM90A), SM90A, 3, boxes)
    assert launch.places[launch.shared[0]] == 0
    lines = [line.strip() for line in str(launch).split("\n")]
    (stored,) = (n for n, x in enumerate(lines) if x.startswith("mma.store"))
    met = max(n for n in range(stored) if lines[n] == "barrier shared")
    assert lines[met - 1] == "wait products"
    last = max(n for n in range(stored) if lines[n].startswith("wgmma"))
    assert last < met - 1


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_ptxas_holds_the_best_tile_of_a_large_product_in_registers():
    case = product(4096, 4096, 4096, bfloat16, float32)
    p = work_of(case)
    tile = tensor_tiles(p, SM90A, GROUPS)[0]
    stages = best_stages(tiling_of(p, tile, GROUPS), SM90A)
    assert stages > 2 and tile[:2] == (128, 256)
    program = launches(scheduled(case, CORES, group_tile=tuple(tile)), SM90A)
    (used,) = report.assemble(ptx(program, SM90A), SM90A)[1].values()
    assert 128 < used.registers <= 176
    assert used.stack == used.spill_stores == used.spill_loads == 0
