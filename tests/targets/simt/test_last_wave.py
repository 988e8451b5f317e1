"""The last wave of a product's tiles in parts: results, faults, decisions, and what is counted."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.targets.cuda.running import load_counted
from tests.targets.opencl.running import pocl, run
from tests.targets.simt.products import (
    CASES,
    Case,
    arrays,
    expected,
    interpreted,
    product,
    program,
    tiled,
)
from tilewright.base.dtypes import float32, int8, int32
from tilewright.base.errors import MemoryLimitError, ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.parser import parse_program
from tilewright.loops.shared_memory import RaceError
from tilewright.runtime import devices
from tilewright.runtime.model import LaunchStep
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda.machine import MACHINES as NVIDIA
from tilewright.targets.cuda.machine import machine
from tilewright.targets.opencl.target import OpenCL
from tilewright.targets.simt.cost import SECTOR, fetch_request, padding
from tilewright.targets.simt.last_wave import (
    WHOLE,
    LastWave,
    best_wave,
    last_waves,
    shares,
    time_of,
    workspace_bytes,
)
from tilewright.targets.simt.machine import GENERIC, MACHINES, MALI, POCL, SimtMachine
from tilewright.targets.simt.predict import (
    _launch_time,
    tiles,
    time_in_tiles,
    waves_of,
)
from tilewright.targets.simt.products import product_of
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.simt.tiling import SimtTile, Tiling, tiling
from tilewright.testing.ptx.traffic import AccessKind
from tilewright.testing.random_kernels import plain

SM80 = machine("sm_80")
TILE = SimtTile(16, 16, 8, 16, 16)
WIDE = SimtTile(64, 128, 32, 16, 16)
LONE_TILE = SimtTile(16, 16, 8, 8, 8)  # without warps


def few(of: SimtMachine, units: int) -> SimtMachine:
    """A machine that runs few blocks at a time."""
    return replace(of, units=units)


def plan_of(case: Case, tile: SimtTile = TILE) -> Tiling:
    p = product_of(classify(case))
    assert p is not None
    return tiling(p, tile)


def divided(case: Case, of: SimtMachine, parts: int, **how: object) -> LaunchProgram:
    """Launches whose last wave is in parts: of the tiles that are left, or of some more."""
    left = plan_of(case).blocks % of.units
    wave = LastWave(left, parts)
    tile = TILE if of.warp > 1 else LONE_TILE
    p = program(tiled(case, of, tile=tile, last_wave=wave, **how), of)
    assert len(p.launches) == 3 and p.launches[1].grid == (parts, left, 1)
    return p


# -- results


@pytest.mark.sampled(3)  # what follows; a batch; integers
@pytest.mark.parametrize(
    ("name", "units", "parts"),
    [
        ("followed", 4, 3),
        ("batch", 5, 2),
        ("int8", 3, 3),
        ("odd", 5, 6),
        ("transposed", 4, 5),
        ("turned", 4, 2),
        ("float16", 3, 5),
    ],
)
def test_a_last_wave_in_parts_is_right_and_has_no_race(name, units, parts):
    case = CASES[name]()
    p = divided(case, few(SM80.simt, units), parts)
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(interpreted(p, given), want)


def test_channels_of_a_convolution_may_be_in_parts_and_its_window_may_not():
    case, of, deep = CASES["convolution"](), few(SM80.simt, 7), TILE._replace(depth=32)
    assert plan_of(case, deep).blocks == 18
    (three,) = {d.extent for d in plan_of(case).product.sums} - {5}
    assert three == 3
    p = program(tiled(case, of, tile=deep, last_wave=(4, 2)), of)
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(interpreted(p, given), want)
    last = plan_of(CASES["channels last"]())  # one step of channels, nine of the window
    assert last.steps == 9 and last.blocks == 8
    assert waves_of(last, few(SM80.simt, 5), True, False) == [WHOLE]


def scaled(m: int, n: int, k: int) -> Case:
    """A product and a map that reads another tensor, a row of it, and a factor."""
    a, b, y = (Buffer(x, s, float32) for x, s in zip("ABY", ((m, k), (k, n), (m, n))))
    t, c = Buffer("T", (m, n), float32), Buffer("C", (m, n), float32)
    return [
        reduce_("mm", t, (k,), "add", lambda i, j, k: a[i, k] * b[k, j]),
        map_(
            "scale", y, lambda i, j: t[i, j] * (t[i, j] + c[i, j]) + c[0, j] * a[i, 0]
        ),
    ]


def two_sums(m: int, n: int, k: int, own: int) -> Case:
    """Both are an index of both factors, in another order, so that they are no single one."""
    shapes = ((m, k, own), (own, k, n), (m, n))
    a, b, y = (Buffer(x, s, float32) for x, s in zip("ABY", shapes))
    value = lambda i, j, k, x: a[i, k, x] * b[x, k, j]  # noqa: E731
    return [reduce_("mm", y, (k, own), "add", value)]


def slanted(m: int, n: int, k: int) -> Case:
    """The sum is an index of a factor, and part of another index of it."""
    a, b, y = (
        Buffer(x, s, float32) for x, s in zip("ABY", ((m + k, k), (k, n), (m, n)))
    )
    return [reduce_("mm", y, (k,), "add", lambda i, j, k: a[i + k, k] * b[k, j])]


def kept(m: int, n: int, k: int) -> Case:
    """A product whose results keep the summed axis, at the index 0, between rows and columns."""
    a, b, y = (
        Buffer(x, s, float32) for x, s in zip("ABY", ((m, k), (k, n), (m, 1, n)))
    )
    value = lambda i, j, k: a[i, k] * b[k, j]  # noqa: E731
    place = lambda i, j: (i, 0, j)  # noqa: E731
    return [reduce_("mm", y, (k,), "add", value, extents=(m, n), index=place)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "wave", "stages"),
    [
        (scaled(33, 31, 34), (2, 3), 2),
        (slanted(33, 31, 34), (2, 5), 1),
        (kept(33, 31, 34), (2, 3), 2),
        (two_sums(20, 40, 33, 3), (2, 6), 1),
        (two_sums(20, 40, 3, 33), (2, 5), 2),
    ],
)
def test_what_else_is_read_and_other_sums_do_not_matter(case, wave, stages):
    of = few(GENERIC, plan_of(case, LONE_TILE).blocks - 2)
    p = program(tiled(case, of, tile=LONE_TILE, last_wave=wave, stages=stages), of)
    assert len(p.launches) == 3
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(interpreted(p, given), want)


def test_blocks_of_one_step_have_no_next_one():
    """As many parts as steps: there is nothing to fetch ahead, but in the full waves."""
    case = product(33, 31, 34)
    p = divided(case, few(GENERIC, 4), 5, stages=3)
    assert plan_of(case, LONE_TILE).steps == 5
    full, parts, _ = p.launches
    assert [len(b.shape) for b in (*full.shared, *parts.shared)] == [3, 3, 2, 2]
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(interpreted(p, given), want)


def test_several_products_of_a_kernel_have_a_last_wave_each():
    """The second one reads the results of the first one, which are from two launches."""
    one = product(33, 31, 34)
    c, z = Buffer("C", (33, 33), float32), Buffer("Z", (33, 31), float32)
    y = one[0].outputs[0].tensor
    other = reduce_("pp", z, (33,), "add", lambda i, j, k: c[i, k] * y[k, j])
    case, of = [*one, other], few(SM80.simt, 4)
    (sketch,) = (s for s in sketches(plain(case), case, of) if s.name == "tiles")
    how = {f"{name}.{k}": v for name in ("mm", "pp") for k, v in BOTH.items()}
    p = program(sketch.at({**how, "pp.last_wave": (2, 5)}), of)
    assert len(p.launches) == 6 and len(p.workspace) == 3
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(interpreted(p, given), want)


BOTH = {"tiled": True, "tile": TILE, "last_wave": (2, 3)}


def test_parts_are_added_by_no_more_threads_than_a_block_may_have():
    of = replace(few(GENERIC, 4), block_threads=64)
    p = divided(product(33, 31, 34), of, 3)
    assert [math.prod(x.threads) for x in p.launches] == [64, 64, 64]


@pytest.mark.parametrize(("of", "stages"), [(MALI, 1), (GENERIC, 2)])
def test_it_is_right_on_pocl(of, stages):
    case = CASES["followed"]()
    how = {} if of is MALI else {"stages": stages}
    p = divided(case, few(of, 4), 3, **how)
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(run(p, given)[p.outputs[0]], want)


@pytest.mark.parametrize("stages", [1, 3])
def test_it_is_right_as_ptx(stages):
    case = product(70, 50, 100)
    p = divided(case, few(SM80.simt, 12), 4, stages=stages)
    given = arrays(p)
    _, (made,) = load_counted(p, SM80, given)
    assert np.array_equal(made, expected(case, given))


def test_tiles_of_the_wave_before_may_be_in_parts_too():
    """Then more tiles may be in parts than are not."""
    case, of = product(70, 40, 30), few(SM80.simt, 6)
    p = program(tiled(case, of, tile=TILE, last_wave=(9, 2)), of)
    assert [x.grid for x in p.launches[:2]] == [(6, 1, 1), (2, 9, 1)]
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(interpreted(p, given), want)


def test_parts_are_added_in_one_order():
    case, of = product(40, 40, 100), few(SM80.simt, 5)
    p = divided(case, of, 3)
    rng = np.random.default_rng(0)
    given = {b: rng.standard_normal(b.shape).astype(np.float32) for b in p.params}
    one, two = (interpreted(p, dict(given), seed).copy() for seed in (1, 2))
    assert np.array_equal(one, two)
    a, b, _ = (x.astype(np.float64) for x in given.values())
    np.testing.assert_allclose(one, a @ b, atol=1e-4)


# -- faults


SMALL = product(40, 40, 60)  # nine tiles of ten steps


@pytest.fixture(scope="module")
def small():
    p = divided(SMALL, few(SM80.simt, 7), 3)
    return p, arrays(p)


def is_wrong(given, p: LaunchProgram) -> bool:
    own = {b: given[c].copy() for b, c in zip(p.params, given, strict=True)}
    want = expected(SMALL, given)
    return not np.array_equal(interpreted(p, own), want)


def changed(p: LaunchProgram, old: str, new: str) -> LaunchProgram:
    lines = str(p).replace(old, new)
    assert lines != str(p)
    return parse_program(lines.split("\n"))


def test_nothing_is_wrong_without_a_fault(small):
    p, given = small
    assert not is_wrong(given, parse_program(str(p).split("\n")))


@pytest.mark.parametrize("order", [(1, 2), (0, 2), (0, 1), (0, 2, 1)])
def test_a_launch_that_is_left_out_or_too_early_is_found(small, order):
    """Full waves, parts, what adds these; parts that are added before they are there."""
    p, given = small
    assert is_wrong(given, replace(p, launches=tuple(p.launches[n] for n in order)))


def test_a_wrong_split_is_found(small):
    """Parts that overlap, or leave out what is between them."""
    p, given = small
    for step in (16, 32):
        assert is_wrong(given, changed(p, "blockIdx.x * 24", f"blockIdx.x * {step}"))


def test_a_part_in_the_place_of_another_is_found(small):
    p, given = small
    work = p.workspace[0].name
    for place in ("[0, blockIdx.x,", "[blockIdx.y, 0,"):
        wrong = changed(p, f"{work}[blockIdx.y, blockIdx.x,", f"{work}{place}")
        with pytest.raises(RaceError):
            is_wrong(given, wrong)


def test_a_part_that_is_not_added_is_found(small):
    p, given = small
    assert is_wrong(given, changed(p, "combine in 3", "combine in 2"))


# -- which there are


def waves(case: Case, of: SimtMachine, exact: bool = False) -> list[LastWave]:
    return waves_of(plan_of(case), of, of.shared_pays, exact)


def test_there_are_parts_where_the_last_wave_is_not_full():
    case = product(70, 50, 100)  # twenty tiles of twenty steps
    assert waves(case, few(SM80.simt, 10)) == [WHOLE]
    assert waves(case, few(SM80.simt, 20)) == [WHOLE]
    assert waves(case, few(SM80.simt, 21)) == [WHOLE]  # no wave is full
    found = waves(case, few(SM80.simt, 12))
    assert {w.tiles for w in found} == {0, 8}
    assert {w.tiles for w in waves(case, few(SM80.simt, 8))} == {0, 4, 12}


def test_no_part_is_empty():
    """Five steps in four parts would be two in each of three, and none in the fourth."""
    found = waves(product(70, 50, 40), few(SM80.simt, 12))
    assert plan_of(product(70, 50, 40)).steps == 5
    assert {w.parts for w in found} == {1, 3, 5}


def test_exact_sums_of_floats_are_whole_and_those_of_integers_need_not_be():
    of = few(SM80.simt, 12)
    assert waves(product(70, 50, 100), of, exact=True) == [WHOLE]
    assert len(waves(product(70, 50, 100, int8, int32), of, exact=True)) > 1
    case = product(70, 50, 100)
    found = sketches(plain(case), case, of, exact=True)
    tiles_ = next(s for s in found if s.name == "tiles")
    with pytest.raises(ScheduleError, match="last_wave"):
        tiles_.at({"mm.tile": TILE, "mm.last_wave": (8, 4)})


# -- whole models


MODEL = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
small (float[72, 500] x, float[500, 72] w) => (float[72, 72] y)
{ m = MatMul(x, w) y = Relu(m) }
""")


@pytest.fixture
def by_description(tmp_path, monkeypatch):
    """Compiles a product for a machine of some units, whose launches and memory take no time."""

    def compiled(units: int, model: object = MODEL, **how: object) -> tw.Executable:
        file = tmp_path / "machine.toml"
        costs = "launch_ns = 0.001\nbandwidth = 1e9\ncache_bandwidth = 1e9\n"
        file.write_text(f'like = "pocl"\nunits = {units}\n{costs}')
        return tw.compile(model, target="opencl", machine=file, cache=False, **how)

    pocl()
    monkeypatch.setenv("TILEWRIGHT_OPENCL_DEVICE", "Portable")
    devices.find.cache_clear()
    yield compiled
    devices.find.cache_clear()


def test_a_model_has_it_by_default_and_its_parts_count_against_the_memory_limit(
    by_description,
):
    whole, parts = by_description(1), by_description(2)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, s).astype("f") for s in ((72, 500), (500, 72)))
    for exe in (whole, parts):
        np.testing.assert_array_equal(exe(x, w), np.maximum(x @ w, 0))
    of = replace(POCL, units=2, launch_ns=0.001, bandwidth=1e9, cache_bandwidth=1e9)
    plan = plan_of(product(72, 72, 500), SimtTile(1, 1, 1, 1, 1))
    plan = tiling(plan.product, tiles(plan.product, of, False)[0])
    wave = waves_of(plan, of, False, False)[0]
    assert wave != WHOLE
    less = whole.peak_bytes - 1
    needed = [needed_on_device(by_description, units, less) for units in (1, 2)]
    assert needed[1] - needed[0] == workspace_bytes(plan, wave)


def test_a_limit_of_the_peak_is_enough_and_launches_share_what_their_programs_need(
    by_description,
):
    twice = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17]>
    twice (float[72, 500] x, float[500, 72] w, float[72, 500] v) => (float[72, 72] y)
    { m = MatMul(x, w) n = MatMul(v, w) y = Add(m, n) }
    """)
    for model in (MODEL, twice):
        exe = by_description(2, model)
        assert by_description(2, model, memory_limit=exe.peak_bytes)
        with pytest.raises(MemoryLimitError):
            by_description(2, model, memory_limit=exe.peak_bytes - 1)
    rng = np.random.default_rng(0)
    sides = (72, 500), (500, 72), (72, 500)
    x, w, v = (rng.integers(-3, 4, s).astype("f") for s in sides)
    np.testing.assert_array_equal(exe(x, w, v), x @ w + v @ w)
    parts = [workspace(step) for step in exe.model.launches]
    assert len(parts) == 2 and all(parts)
    (size,) = exe.model.devices.values()
    tensors = [s for step in exe.model.launches for s in step.arguments]
    end = max(s.at + s.tensor.nbytes for s in tensors if s.tensor.name != "workspace")
    assert {p[0][0] for p in parts} == {end}  # behind the tensors, the same for both
    assert size == max(at + n for p in parts for at, n in p)
    for p in parts:
        assert all(at + n <= other for (at, n), (other, _) in pairwise(p))


def workspace(step: LaunchStep) -> list[tuple[int, int]]:
    """Where the buffers of a launch besides its operands are, and their bytes."""
    named = [s for s in step.arguments if s.tensor.name == "workspace"]
    return [(s.at, s.tensor.nbytes) for s in named]


def needed_on_device(by_description, units: int, less: int) -> int:
    """Bytes of the device that a call needs, by the refusal of less."""
    with pytest.raises(MemoryLimitError) as refused:
        by_description(units, memory_limit=less)
    (found,) = re.findall(r"([0-9,]+) on opencl", str(refused.value))
    return int(found.replace(",", ""))


# -- the model


# By machine and sizes: the tile, its number, the tiles in parts and how many parts. A last wave of
# 14 of 108 units, and one of 37 of 132, are in parts; one of 100 of 108 is not, nor a full one.
GOLDEN = {
    ("sm_80", 1280, 4096): (100, WHOLE),
    ("sm_80", 1664, 1024): (338, LastWave(14, 7)),
    ("sm_80", 2048, 2048): (256, LastWave(40, 8)),
    ("sm_80", 4096, 4096): (1024, LastWave(52, 4)),
    ("sm_90a", 1024, 1024): (128, WHOLE),
    ("sm_90a", 1664, 1024): (169, LastWave(37, 7)),
    ("sm_90a", 2048, 2048): (256, WHOLE),
    ("sm_90a", 4096, 4096): (1024, LastWave(100, 5)),
    ("generic", 136, 16384): (25, LastWave(9, 7)),
    ("generic", 1088, 2048): (1156, LastWave(4, 8)),
    ("generic", 640, 1024): (400, WHOLE),
    ("pocl", 72, 8192): (9, LastWave(1, 2)),  # of two cores
    ("pocl", 100, 2048): (13, LastWave(1, 2)),
    ("pocl", 96, 512): (12, WHOLE),
    ("mali", 136, 16384): (25, LastWave(1, 8)),
    ("mali", 100, 2048): (50, WHOLE),  # two are left, but a launch takes 100 us
}
ALL = {name: of.simt for name, of in NVIDIA.items()} | dict(MACHINES)


@pytest.mark.parametrize(("of", "size", "depth"), GOLDEN)
def test_the_decision_is_the_golden_one(of, size, depth):
    simt = ALL[of]
    p = product_of(classify(product(size, size, depth)))
    plan = tiling(p, tiles(p, simt, simt.shared_pays)[0])
    found = waves_of(plan, simt, simt.shared_pays, False)[0]
    assert (plan.blocks, found) == GOLDEN[of, size, depth]


@pytest.mark.parametrize("of", ["sm_80", "generic", "pocl"])
def test_the_forms_that_are_not_looked_at_would_not_be_the_fastest(of):
    simt, divided_ = ALL[of], 0
    for size, depth in ((136, 4096), (500, 1024), (1664, 1024), (72, 8192)):
        p = product_of(classify(product(size, size, depth)))
        for tile in tiles(p, simt, simt.shared_pays)[:12]:
            plan = tiling(p, tile)
            timed = partial(_launch_time, machine=simt, staged=simt.shared_pays)
            fastest = last_waves(plan, simt, timed, exact=False)[0]
            time = time_of(plan, fastest, simt, timed)
            assert best_wave(plan, simt, timed, False) == (fastest, time)
            divided_ += fastest != WHOLE
    assert divided_ >= 8


def test_parts_have_to_pay_for_their_launches_and_for_memory():
    plan, of = plan_of(product(1664, 1664, 1024), WIDE), SM80.simt
    assert waves_of(plan, of, True, False)[0] == LastWave(14, 7)
    for dear in (replace(of, launch_ns=100_000.0), replace(of, bandwidth=10.0)):
        assert waves_of(plan, dear, True, False)[0] == WHOLE


def test_launches_and_sectors_are_those_of_the_closed_form():
    """As `test_traffic.py` has it for tiles; parts are stored once and loaded once."""
    case, of, wave = product(64, 64, 64), few(SM80.simt, 3), LastWave(1, 4)
    tile = SimtTile(32, 32, 8, 8, 16)
    p = program(tiled(case, of, tile=tile, last_wave=wave), of)
    plan = plan_of(case, tile)
    found, _ = load_counted(p, SM80)
    steps = 0
    for launch, share in zip(p.launches, shares(plan, wave), strict=False):
        assert launch.grid[0] * launch.grid[1] == share.blocks
        steps += share.blocks * share.steps
    work = workspace_bytes(plan, wave)
    assert work == sum(b.size * b.dtype.itemsize for b in p.workspace)
    rooms = {x: padding(plan, x, of) for x in (plan.product.left, plan.product.right)}
    fetched = [fetch_request(plan, x, n, of) for x, n in rooms.items()]
    loaded = steps * sum(r.requests * r.turns for r in fetched) + work // SECTOR
    assert found.turns[AccessKind("global", False)] == loaded
    results = 64 * 64 * 4
    assert found.turns[AccessKind("global", True)] == (results + work) // SECTOR


def test_the_time_of_all_launches_decides_the_tile_and_what_a_plan_expects():
    p, of = product_of(classify(product(2048, 2048, 2048))), SM80.simt
    whole, parts = (tiles(p, of, True, exact)[0] for exact in (True, False))
    assert (whole.rows, parts.rows) == (64, 128)
    one, other = (
        time_in_tiles(tiling(p, tile), of, True, exact)
        for tile, exact in ((whole, True), (parts, False))
    )
    assert other < one
    for exact, time in ((True, one), (False, other)):
        assert OpenCL(of, exact).product_time(p) == time
