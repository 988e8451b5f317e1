"""Products on tensor cores by default: right at every size, refused with a reason, and counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.loops.gpu_kernels import barriers, without_barrier
from tests.targets.cuda.running import SM80, load_counted
from tests.targets.simt.products import (
    Case,
    arrays,
    convolution,
    expected,
    interpreted,
    product,
)
from tilewright.base.dtypes import bfloat16, float16, float32, int8, int32
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer, Cast
from tilewright.loops.passes.block_memory import BlockMemory
from tilewright.loops.shared_memory import RaceError
from tilewright.runtime import devices
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda import report
from tilewright.targets.cuda.cost import (
    best_rows,
    block_bytes,
    fragment_request,
    operand_requests,
    result_requests,
    row_layouts,
)
from tilewright.targets.cuda.emit import llvm_ir, ptx
from tilewright.targets.cuda.intrinsics import PRODUCTS
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.cuda.tensor_choice import tensor_tiles
from tilewright.targets.cuda.tensor_tiles import (
    NAME,
    TensorCores,
    with_one_column,
)
from tilewright.targets.cuda.tensor_tiling import RowLayout, TensorTile, tensor_tiling
from tilewright.targets.simt.code import PTX, DeviceProgram
from tilewright.targets.simt.cost import shared_bytes
from tilewright.targets.simt.products import product_of
from tilewright.testing.ptx import device
from tilewright.testing.ptx.traffic import AccessKind
from tilewright.testing.random_kernels import plain

CORES = TensorCores(SM80, exact=False)
SMALL = (16, 32, 16, 1, 1)


def launches(point, of=SM80):
    return Cuda(of).launches(point.schedule.kernel)


def scheduled(case: Case, cores: TensorCores = CORES, **values):
    """The schedule on tensor cores, with defaults for what is not named."""
    (sketch,) = cores.with_sketch([], plain(case), case)
    own = {k if "." in k else f"mm.{k}": v for k, v in values.items()}
    return sketch.at(own)


def turned(m: int, n: int, k: int) -> Case:
    """The second factor is given as its transpose."""
    a, b = Buffer("A", (m, k), float16), Buffer("B", (n, k), float16)
    y = Buffer("Y", (m, n), float32)
    return [
        reduce_(
            "mm",
            y,
            (k,),
            "add",
            lambda i, j, k: Cast(a[i, k], float32) * Cast(b[j, k], float32),
        )
    ]


def rounded(m: int, n: int, k: int) -> Case:
    """A product, a bias, and a conversion back to float16."""
    (mm,) = product(m, n, k, float16, float32)
    bias, z = Buffer("bias", (n,), float16), Buffer("Z", (m, n), float16)
    y = mm.outputs[0].tensor
    total = map_(
        "round", z, lambda i, j: Cast(y[i, j] + Cast(bias[j], float32), float16)
    )
    return [mm, total]


def batched(count: int, m: int, n: int, k: int) -> Case:
    a, b = Buffer("A", (count, m, k), bfloat16), Buffer("B", (count, k, n), bfloat16)
    y = Buffer("Y", (count, m, n), float32)
    return [
        reduce_(
            "mm",
            y,
            (k,),
            "add",
            lambda c, i, j, k: Cast(a[c, i, k], float32) * Cast(b[c, k, j], float32),
        )
    ]


CASES = {
    "float16": (product(37, 29, 41, float16, float32), (32, 32, 32, 2, 1)),
    "bfloat16": (product(17, 64, 23, bfloat16, float32), SMALL),
    "int8": (product(19, 33, 70, int8, int32), (16, 32, 32, 1, 1)),
    "turned": (turned(18, 35, 40), (32, 64, 16, 1, 4)),
    "rounded": (rounded(33, 34, 18), (32, 32, 16, 2, 1)),
    "batch": (batched(2, 17, 33, 18), SMALL),
    "two rows": (product(2, 40, 20, float16, float32), SMALL),
}


def check_as_ptx(case: Case, tile: tuple[int, ...], stages: int = 1) -> None:
    p = launches(scheduled(case, tensor_tile=tile, stages=stages))
    given = arrays(p)
    want = expected(case, given)
    traffic, (made,) = load_counted(p, SM80, given)
    assert traffic.products
    assert np.array_equal(made, want)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_a_product_is_right_as_ptx(name):
    check_as_ptx(*CASES[name])


def test_a_warp_meets_again_between_conditional_fetches_and_products():
    check_as_ptx(product(37, 64, 41, bfloat16, float32), SMALL, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_what_it_rounds_is_within_the_intrinsic_s_tolerance(dtype):
    case = product(16, 32, 100, dtype, float32)
    p = launches(scheduled(case, tensor_tile=SMALL))
    rng = np.random.default_rng(0)
    a, b, y = p.params
    given = {x: rng.standard_normal(x.shape).astype(dtype.numpy) for x in (a, b)}
    _, (made,) = load_counted(p, SM80, given)
    left, right = (given[x].astype(np.float64) for x in (a, b))
    (of,) = (i for i in PRODUCTS if i.name == f"cuda.mma.{dtype.name}")
    sums = np.abs(left) @ np.abs(right)
    steps = 100 // 16 + 1
    assert (np.abs(made - left @ right) <= steps * of.tolerance * sums).all()
    assert y.dtype is float32


# -- races


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_threads_do_not_race_and_no_barrier_is_needless(stages):
    case = product(9, 20, 20 if stages < 3 else 36, float16, float32)
    p = launches(scheduled(case, tensor_tile=SMALL, stages=stages))
    given = arrays(p)
    want = expected(case, given)
    assert np.array_equal(interpreted(p, arrays(p)), want)
    for number in range(len(barriers(p))):
        with pytest.raises(RaceError):
            interpreted(without_barrier(p, number), arrays(p))


@pytest.mark.parametrize(("stages", "count"), [(1, 3), (2, 4)])
def test_threads_meet_around_the_products_and_around_the_results(stages, count):
    """Of several stages, the last products are not in the loop, where threads meet behind them."""
    case = product(17, 29, 20, float16, float32)
    p = launches(scheduled(case, tensor_tile=SMALL, stages=stages))
    assert len(barriers(p)) == count


def test_llvm_knows_that_the_whole_warp_comes_to_a_product():
    p = launches(scheduled(product(17, 29, 20, float16, float32)))
    calls = [x for x in llvm_ir(p, SM80).splitlines() if "@llvm.nvvm.mma" in x]
    assert calls and all(x.endswith(") convergent") for x in calls)


# -- what the model counts


AS_THEY_ARE = {"A.rows": (0, False), "B.rows": (0, False)}
PADDED = {"A.rows": (8, False), "B.rows": (8, False)}
COUNTED = {
    "float16": (product(64, 128, 64, float16, float32), (64, 64, 32, 2, 2), {}),
    "conflicts": (
        product(32, 64, 128, float16, float32),
        (32, 64, 64, 1, 4),
        AS_THEY_ARE,
    ),
    "padded": (product(32, 32, 64, float16, float32), (32, 32, 32, 2, 1), PADDED),
    "turned": (turned(64, 32, 32), (64, 32, 32, 4, 1), {}),
    "int8": (product(32, 32, 64, int8, int32), (32, 32, 64, 2, 1), {}),
    "three": (product(32, 64, 64, float16, float32), (32, 64, 16, 1, 4), {"stages": 3}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COUNTED)
def test_requests_turns_and_products_are_those_of_the_closed_forms(name):
    check_counted(*COUNTED[name])


def check_counted(
    case: Case,
    tile: tuple[int, ...],
    values: Mapping[str, object],
    is_whole: bool = True,
) -> None:
    """Compare what the interpreter of PTX counts with the model. is_whole: no tile has padding, of
    which nothing is loaded."""
    point = scheduled(case, tensor_tile=tile, **values)
    program = launches(point)
    found, _ = load_counted(program, SM80)
    p = with_one_column(product_of(classify(case)))
    t = tensor_tiling(p, TensorTile(*tile))
    blocks, times = t.plan.blocks, t.plan.blocks * t.plan.steps
    chosen = {x.name: x.value for x in point.parameters}
    rows = {x: RowLayout(*chosen[f"{x.buffer.name}.rows"]) for x in (p.left, p.right)}
    fetched, stored, loaded = zip(
        *(operand_requests(t, x, r, SM80) for x, r in rows.items()), strict=True
    )
    used = BlockMemory.of(program.launches[0]).nbytes
    assert used == block_bytes(t, rows, SM80, chosen["mm.stages"])
    first, last = result_requests(t, SM80)
    for kind, of_steps, of_block in (
        (AccessKind("global", False), fetched, ()),
        (AccessKind("shared", True), stored, (first,)),
        (AccessKind("shared", False), loaded, (last,)),
    ):
        asked = [(times, r) for r in of_steps] + [(blocks, r) for r in of_block]
        requests = sum(n * r.requests for n, r in asked)
        turns = sum(n * r.requests * r.turns for n, r in asked)
        if is_whole or kind.memory == "shared":
            assert (found.requests[kind], found.turns[kind]) == (requests, turns)
        else:
            assert 0.9 * requests < found.requests[kind] <= requests
            assert 0.7 * turns < found.turns[kind] <= turns
    assert found.products == times * t.products


def test_swizzled_rows_are_stored_and_loaded_without_conflicts():
    for case in (turned(128, 128, 128), product(128, 128, 128, float16, float32)):
        p = product_of(classify(case))
        for tile in tensor_tiles(p, SM80):
            t = tensor_tiling(p, tile)
            for x, words in ((p.left, 4), (p.right, 2)):
                rows = best_rows(t, x, SM80)
                assert rows == (0, True)
                _, stored, loaded = operand_requests(t, x, rows, SM80)
                assert (stored.turns, loaded.turns) == (4, words)


def test_rows_with_neither_room_nor_swizzle_conflict():
    p = product_of(classify(turned(128, 128, 128)))
    t = tensor_tiling(p, TensorTile(128, 128, 64, 2, 4))
    for x, words in ((p.left, 4), (p.right, 2)):
        assert fragment_request(t, x, RowLayout(8), SM80).turns == words
        assert fragment_request(t, x, RowLayout(0), SM80).turns == 8 * words
    padded, swizzled = (
        shared_bytes(t.plan, {p.left: r.room, p.right: r.room}, 2)
        for r in (RowLayout(8), RowLayout(0, True))
    )
    assert padded - swizzled == 2 * 2 * 128 * 16


def test_rows_that_no_matrix_is_loaded_from_are_not_swizzled():
    p = product_of(classify(product(64, 64, 64, int8, int32)))
    t = tensor_tiling(p, TensorTile(64, 64, 64, 2, 2))
    swizzled = [RowLayout(0, True) in row_layouts(t, x) for x in (p.left, p.right)]
    assert swizzled == [True, False]


# -- what is refused


def reason(case: Case, cores: TensorCores = CORES) -> str:
    p = product_of(classify(case))
    assert p is not None
    return cores.refusal(p)


def shifted(m: int, n: int, k: int) -> Case:
    """int8 minus a zero point."""
    a, b = Buffer("A", (m, k), int8), Buffer("B", (k, n), int8)
    y = Buffer("Y", (m, n), int32)
    return [
        reduce_(
            "mm",
            y,
            (k,),
            "add",
            lambda i, j, k: (Cast(a[i, k], int32) - 3) * Cast(b[k, j], int32),
        )
    ]


HALVES = product(64, 64, 64, float16, float32)
REFUSED = [
    (product(64, 64, 64), CORES, "no instruction for float32 with sums in float32"),
    (product(64, 64, 64, float16), CORES, "for float16 with sums in float16"),
    (shifted(64, 64, 64), CORES, "not read as they are"),
    (HALVES, TensorCores(machine("sm_75"), False), "sm_75 has no .*needs sm_80"),
    (HALVES, TensorCores(SM80, True), "not exact: it adds in its own order"),
    (
        HALVES,
        TensorCores(replace(SM80, block_shared=2 << 10), False),
        "no tile fits",
    ),
]


@pytest.mark.parametrize(("case", "cores", "why"), REFUSED)
def test_what_they_cannot_do_is_refused_with_the_reason(case, cores, why):
    assert re.search(why, reason(case, cores))
    assert cores.with_sketch([], plain(case), case) == []


def test_several_dimensions_of_both_sides_are_refused():
    (c,) = convolution(8, 8, 16, 1, 1)
    p = product_of(classify([c]))
    assert "no instruction" in CORES.refusal(p)
    q = product_of(classify(HALVES))
    several = replace(q, rows=p.columns, columns=p.columns, sums=p.sums)
    assert "several row dimensions and several column" in CORES.refusal(several)


def test_results_in_another_order_are_stored_row_by_row_first():
    a, b = Buffer("A", (8, 8, 16), float16), Buffer("B", (16, 24), float16)
    y = Buffer("Y", (8, 24, 8), float32)
    mixed = reduce_(
        "mm",
        y,
        (16,),
        "add",
        lambda i, f, j, k: Cast(a[i, j, k], float32) * Cast(b[k, f], float32),
    )
    back = map_("back", Buffer("Z", (8, 8, 24), float32), lambda i, j, f: y[i, f, j])
    assert not reason([mixed, back])
    p = launches(scheduled([mixed, back], tensor_tile=(16, 32, 16, 1, 1), stages=1))
    given = arrays(p)
    traffic, (made,) = load_counted(p, SM80, given)
    assert traffic.products
    assert np.array_equal(made, expected([mixed, back], given))


def test_exact_products_of_integers_are_allowed():
    case = product(64, 64, 64, int8, int32)
    assert not reason(case, TensorCores(SM80, True))


# -- what is chosen


def first(case: Case, of: str = "sm_80", exact: bool = False) -> str:
    return Cuda(machine(of), exact).sketches(plain(case), case, ())[0].name


def test_they_are_chosen_where_they_are_expected_to_be_faster():
    large = product(1024, 1024, 1024, bfloat16, float32)
    assert first(large, "sm_90a") == NAME
    assert first(large, "sm_75") == first(large, exact=True) == "tiles"
    assert first(product(512, 512, 512, int8, int32), exact=True) == NAME
    assert first(product(8, 8, 8, float16, float32)) == "by element"


def test_the_rate_of_the_tensor_cores_decides():
    p = product_of(classify(product(1024, 1024, 1024, float16, float32)))
    assert CORES.pays(p)
    slow = TensorCores(replace(SM80, rates=SM80.rates._replace(tensor=0.01)), False)
    assert slow.time(p) > CORES.time(p)
    assert not slow.pays(p)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("of", ["sm_80", "sm_86", "sm_90a", "sm_120"])
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (100, 3000, 70), (2, 64, 64)])
def test_tiles_fit_the_machine(of, sizes):
    case = product(*sizes, float16, float32)
    p = product_of(classify(case))
    found = tensor_tiles(p, machine(of))
    assert found
    large = found[0].rows * found[0].columns
    assert large >= 64 * 64 if sizes[0] > 1000 else large < 128 * 128


@pytest.mark.sampled(2)  # with ldmatrix and cp.async
@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ptxas_holds_a_tile_of_128_by_128_in_registers(arch):
    of = machine(arch)
    case = product(1024, 1024, 1024, float16, float32)
    p = launches(scheduled(case, tensor_tile=(128, 128, 64, 2, 4)), of)
    (used,) = report.assemble(ptx(p, of), of)[1].values()
    assert used.registers <= 128
    assert used.stack == used.spill_stores == used.spill_loads == 0


# -- a model


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(devices, "_makers", {"cuda": device.make})
    devices.find.cache_clear()
    yield
    devices.find.cache_clear()


def model(m: int, n: int, k: int) -> onnx.ModelProto:
    half = TensorProto.FLOAT16
    a = helper.make_tensor_value_info("a", half, (m, k))
    b = helper.make_tensor_value_info("b", half, (k, n))
    y = helper.make_tensor_value_info("y", half, (m, n))
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "product", [a, b], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def assembly(m: int, n: int, k: int) -> str:
    exe = tw.compile(model(m, n, k), target="cuda")
    return "".join(DeviceProgram.from_bytes(p, PTX).text for p in exe.model.programs)


@pytest.mark.slow
def test_a_large_product_of_a_model_is_on_tensor_cores():
    assert "mma.sync" in assembly(512, 512, 512)


def test_a_model_runs_on_tensor_cores(gpu, monkeypatch):
    monkeypatch.setattr(TensorCores, "pays", lambda self, p: True)
    exe = tw.compile(model(18, 40, 36), target="cuda")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((18, 36), (36, 40)))
    want = a.astype(np.float64) @ b.astype(np.float64)
    found = exe({"a": a, "b": b})
    assert found.dtype == np.float16
    assert np.abs(found - want).max() <= 2.0**-10 * np.abs(want).max()
    assert any(b"mma.sync" in p for p in exe.model.programs)
