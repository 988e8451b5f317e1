"""Attention on tensor cores: right at odd sizes, without races and spills, and counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

import tilewright as tw
from tests.loops.gpu_kernels import barriers, without_barrier
from tests.targets.cuda.running import SM80, load_counted
from tests.targets.simt.attention import Group, attention, model, reference
from tilewright.base.dtypes import DType, bfloat16, float16, float32
from tilewright.driver.compile import text
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.shared_memory import RaceError
from tilewright.runtime import devices
from tilewright.targets.cuda import report
from tilewright.targets.cuda.attention_cost import (
    FragmentTiling,
    RowTile,
    block_bytes,
    fragment_tiling,
    registers,
    requests,
    row_tiles,
    time_on_tensor_cores,
)
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.cuda.tensor_attention import NAME, TensorAttention
from tilewright.targets.simt.attention import parts_of
from tilewright.targets.simt.code import PTX, DeviceProgram
from tilewright.testing.ptx import device
from tilewright.testing.ptx.traffic import AccessKind

CORES = TensorAttention(SM80, exact=False)
SMALL = (16, 1)


def program(group: Group, tile: tuple[int, int], stages: int = 1) -> LaunchProgram:
    sketch = CORES.sketch(*group)
    assert sketch is not None
    values = {"attention.tensor_tile": tile, "attention.stages": stages}
    return Cuda(SM80).launches(sketch.at(values).schedule.kernel)


def tiled(group: Group, tile: tuple[int, int]) -> FragmentTiling:
    a = parts_of(group[1])
    assert a is not None
    return fragment_tiling(a, RowTile(*tile))


def arrays(p: LaunchProgram) -> dict[Any, Any]:
    rng = np.random.default_rng(0)
    return {b: rng.standard_normal(b.shape).astype(b.dtype.numpy) for b in p.params}


def expected(group: Group, given: dict[Any, Any]) -> Any:
    wanted = {b: a.copy() for b, a in given.items()}
    interp.run(group[0], wanted)
    (y,) = group[0].outputs
    return wanted[y].astype(np.float64)


def close(found: Any, wanted: Any, of: DType) -> None:
    """A weight may round the other way, if sums of scores differ in their last bit."""
    step = 2.0**-7 if of is bfloat16 else 2.0**-10
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=step, atol=step)


# rows, keys, keys of a block, depth; and how: the tile and the stages
CASES: dict[str, tuple[dict[str, Any], tuple[int, int], int]] = {
    "odd": ({"sizes": (21, 37, 16, 16), "columns": 24}, (32, 2), 1),
    "bfloat16": ({"sizes": (5, 32, 16, 32), "of": bfloat16}, SMALL, 2),
    "causal": ({"sizes": (19, 40, 16, 16), "causal": True}, (32, 1), 1),
    "grouped": ({"sizes": (9, 33, 16, 16), "heads": 2, "group": 2}, SMALL, 2),
    "bias": ({"sizes": (17, 40, 32, 48), "columns": 8, "bias": True}, SMALL, 1),
}


def case(sizes: tuple[int, int, int, int], of: DType = float16, **how: Any) -> Group:
    return attention(*sizes, of=of, **how)


@pytest.mark.sampled(3)  # odd sizes and padding; two stages and grouped heads
@pytest.mark.parametrize("name", CASES)
def test_it_is_right_as_ptx(name):
    how, tile, stages = CASES[name]
    group = case(**how)
    p = program(group, tile, stages)
    given = arrays(p)
    traffic, (made,) = load_counted(p, SM80, given)
    assert len(p.launches) == 1 and traffic.products
    close(made, expected(group, given), how.get("of", float16))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_threads_do_not_race(name):
    how, tile, stages = CASES[name]
    group = case(**how)
    p = program(group, tile, stages)
    given = arrays(p)
    wanted = expected(group, given)
    launch_interp.run(p, given)
    close(given[p.outputs[0]], wanted, how.get("of", float16))


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
def test_no_barrier_is_needless(stages):
    p = program(case((5, 48, 16, 16), columns=8), SMALL, stages)
    for number in range(len(barriers(p))):
        with pytest.raises(RaceError):
            launch_interp.run(without_barrier(p, number), arrays(p))


@pytest.mark.representatives("2")
@pytest.mark.parametrize("stages", [1, 2])
def test_scores_and_shares_take_no_memory_and_no_barrier(stages):
    p = program(case((37, 128, 64, 64)), (32, 2), stages)
    (launch,) = p.launches
    assert {b.name for b in launch.shared} == {"q.pad", "k.pad", "v.pad"}
    assert len(barriers(p)) == 2


# -- what the model counts


@pytest.mark.parametrize(
    ("depth", "tile"),
    [(64, (64, 4)), pytest.param(128, (32, 2), marks=pytest.mark.slow)],
)
def test_requests_and_turns_are_those_of_the_model(depth, tile):
    group = case((tile[0], 128, 64, depth), heads=2)
    traffic, _ = load_counted(program(group, tile), SM80)
    t = tiled(group, tile)
    blocks, steps = 2, 2
    queries, *_ = t.reads
    loads = stores = loaded = turns = sectors = 0
    for read, (fetched, stored, fragments) in requests(t, SM80).items():
        times = blocks if read is queries else blocks * steps
        loads += times * fetched.requests
        sectors += times * fetched.requests * fetched.turns
        stores += times * stored.requests
        turns += times * stored.requests * stored.turns
        loaded += blocks * steps * fragments.requests
        turns += blocks * steps * fragments.requests * fragments.turns
    kinds = [AccessKind(*k) for k in (("global", False), ("shared", True))]
    found = [traffic.requests[k] for k in kinds]
    assert found == [loads, stores]
    assert traffic.turns[kinds[0]] == sectors
    reads = AccessKind("shared", False)
    assert traffic.requests[reads] == loaded
    assert traffic.turns[reads] + traffic.turns[kinds[1]] == turns
    assert traffic.products == blocks * steps * (t.scores.products + t.mean.products)


@pytest.mark.representatives("64-2-sm_90a")  # asynchronous copies
@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("depth", [64, 128])
def test_ptxas_spills_nothing_and_finds_what_the_model_counts(depth, stages, arch):
    group, tile = case((512, 512, 64, depth)), (64, 4)
    of = machine(arch)
    _, used = report.assemble(ptx(program(group, tile, stages), of), of)
    (kernel,) = used.values()
    assert kernel.spill_stores == kernel.spill_loads == kernel.stack == 0
    t = tiled(group, tile)
    counted = block_bytes(t, of, stages)
    assert kernel.shared == (counted if counted <= 48 << 10 else 0)
    assert 0.85 < kernel.registers / registers(t.attention, t.tile) < 1.15


def test_tiles_fit_the_machine_and_the_fastest_is_first():
    """With enough blocks for all units of each machine."""
    a = parts_of(case((512, 1024, 64, 64), heads=48)[1])
    for name in ("sm_80", "sm_86", "sm_90a"):
        of = machine(name)
        found = row_tiles(a, of)
        times = [time_on_tensor_cores(fragment_tiling(a, t), of, 1) for t in found]
        assert all(times) and found[0].warps > 1
        for tile in found:
            assert registers(a, tile) <= of.registers
            assert block_bytes(fragment_tiling(a, tile), of) <= of.block_shared


# -- when it is chosen


REFUSED = {
    "exact": (case((5, 32, 16, 16)), SM80, True, "is not exact"),
    "old": (case((5, 32, 16, 16)), machine("sm_75"), False, "it needs sm_80"),
    "float32": (attention(5, 32, 16, 16), SM80, False, "no instruction for float32"),
    "depth": (case((5, 32, 16, 20)), SM80, False, "no tile fits"),
    "columns": (case((5, 32, 16, 16), columns=20), SM80, False, "no tile fits"),
    "keys": (case((5, 30, 10, 16)), SM80, False, "no tile fits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_tensor_cores_cannot_do_is_refused_with_a_reason(name):
    group, of, exact, why = REFUSED[name]
    cores = TensorAttention(of, exact)
    a = parts_of(group[1])
    assert a is not None and why in cores.refusal(a)
    assert cores.sketch(*group) is None


def test_it_is_the_default_of_a_model():
    made = model(40, 197, 64, 2, 1, False, TensorProto.FLOAT16)
    assert "mma.float16(" in text(made, "kernel", target="cuda")
    found = Cuda(SM80, exact=False).sketches(*case((64, 64, 32, 16)), ())
    assert found[0].name == NAME


@pytest.mark.slow
def test_older_gpus_and_exact_arithmetic_keep_scores_in_memory():
    made = model(40, 64, 16, 1, 1, False, TensorProto.FLOAT16)
    for how in ({"mcpu": "sm_75"}, {"math": "exact"}):
        assert "mma" not in text(made, "kernel", target="cuda", **how)


def right_as_ptx(
    monkeypatch: Any, made: ModelProto, causal: bool, group: int
) -> list[int]:
    """The launches of each program of a model, whose results are checked."""
    monkeypatch.setattr(devices, "_makers", {"cuda": device.make})
    devices.find.cache_clear()
    exe = tw.compile(made, target="cuda", cache=False)
    rng = np.random.default_rng(0)
    shapes = [
        [d.dim_value for d in i.type.tensor_type.shape.dim] for i in made.graph.input
    ]
    given = [rng.standard_normal(s).astype(np.float16) for s in shapes]
    found = np.asarray(exe(*given)).astype(np.float64)
    np.testing.assert_allclose(found, reference(*given, causal), rtol=2e-3, atol=1e-3)
    devices.find.cache_clear()
    programs = [DeviceProgram.from_bytes(p, PTX) for p in exe.model.programs]
    assert "mma.sync" in programs[-1].text
    return [len(p.launches) for p in programs]


def test_a_causal_model_with_grouped_heads_is_right(monkeypatch):
    made = model(21, 40, 16, 1, 2, True, TensorProto.FLOAT16)
    *asks, last = right_as_ptx(monkeypatch, made, True, 2)
    assert last == 1 and asks  # hidden keys count nothing if values are finite


@pytest.mark.slow
@pytest.mark.parametrize("keys", [33, 197, 200])
def test_any_number_of_keys_is_right(monkeypatch, keys):
    made = model(70, keys, 64, 2, 1, False, TensorProto.FLOAT16)
    assert right_as_ptx(monkeypatch, made, False, 1) == [1]


def test_blocks_of_keys_that_a_mask_hides_are_not_read():
    made = model(64, 128, 16, 1, 1, True, TensorProto.FLOAT16)
    kernel = text(made, "kernel", target="cuda")
    assert kernel.index("if matmul_online.b") < kernel.index("alloc k_cuda.pad")


@pytest.mark.slow
def test_float32_keeps_its_kernel():
    made = model(40, 64, 16, 1, 1, False)
    assert "mma" not in text(made, "kernel", target="cuda")
    assert attention(5, 32, 16, 16)[0].params[0].dtype is float32
