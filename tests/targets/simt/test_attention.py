"""Attention over blocks of keys on GPUs: one launch that is right, without races, within limits."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.loops.gpu_kernels import barriers, without_barrier
from tests.loops.test_planted_faults import KINDS
from tests.targets.opencl.running import run
from tests.targets.simt.attention import Group, attention, model, reference
from tilewright.base.errors import ExecutionError
from tilewright.driver.compile import text
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.passes.to_launches import to_launches
from tilewright.runtime import devices
from tilewright.schedule.space import Point
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import MACHINES as NVIDIA
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.opencl.target import OpenCL
from tilewright.targets.simt.attention import attention_of, shape
from tilewright.targets.simt.attention_cost import (
    AttentionTile,
    attention_tiles,
    registers,
    shared_bytes,
)
from tilewright.targets.simt.code import PTX, DeviceProgram
from tilewright.targets.simt.machine import GENERIC, MACHINES, SimtMachine
from tilewright.targets.simt.schedules import sketches
from tilewright.testing.ptx import device

SM80 = machine("sm_80").simt
ALL = {m.name: m for m in (*MACHINES.values(), *(m.simt for m in NVIDIA.values()))}
GROUPS = {
    "odd": lambda: attention(5, 12, 6, 5, columns=7),
    "grouped": lambda: attention(4, 16, 8, 4, heads=2, group=2),
    "causal": lambda: attention(9, 16, 4, 4, causal=True),
}


def point(group: Group, of: SimtMachine, **values: object) -> Point:
    found = next(s for s in sketches(*group, of) if s.name == "attention")
    return found.at({f"attention.{k}": v for k, v in values.items()})


def program(group: Group, of: SimtMachine, **values: object) -> LaunchProgram:
    return to_launches(point(group, of, **values).schedule.kernel, of.warp)


def arrays(p: LaunchProgram) -> dict:
    rng = np.random.default_rng(0)
    return {b: rng.standard_normal(b.shape).astype(np.float32) for b in p.params}


def check(group: Group, p: LaunchProgram, result=launch_interp.run) -> None:
    given = arrays(p)
    wanted = {b: a.copy() for b, a in given.items()}
    interp.run(group[0], wanted)
    found = result(p, given) or given
    (y,) = p.outputs
    np.testing.assert_allclose(found[y], wanted[y], rtol=2e-6, atol=1e-6)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("of", [SM80, GENERIC], ids=["warps", "none"])
def test_it_is_one_launch_that_is_right_and_has_no_race(of, name):
    group = GROUPS[name]()
    p = program(group, of)
    assert len(p.launches) == 1
    check(group, p)


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_it_is_right_on_pocl(name):
    group = GROUPS[name]()
    check(group, program(group, GENERIC), run)


def test_one_thread_may_have_all_rows():
    group = attention(4, 32, 16, 16)
    check(group, program(group, SM80, tile=(4, 1, 16)))


def test_each_barrier_is_needed():
    group = attention(4, 8, 4, 4)
    p = program(group, SM80, tile=(4, 4, 4))
    assert len(barriers(p)) == 3
    for number in range(3):
        with pytest.raises(ExecutionError, match="no barrier"):
            launch_interp.run(without_barrier(p, number), arrays(p))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_planted_fault_is_found(kind):
    """By a race, an index out of range, or a wrong value; at the first run."""
    group = attention(6, 8, 4, 4)
    for what, wrong in kind(program(group, SM80, tile=(4, 4, 4))):
        try:
            check(group, wrong)
        except (ExecutionError, AssertionError):
            continue
        raise RuntimeError(f"not found: {what}")


def test_rows_of_a_warp_are_summed_without_shared_memory():
    p = program(attention(4, 8, 4, 4), SM80, tile=(4, 4, 4))
    names = {b.name for launch in p.launches for b in launch.shared}
    assert names == {"q.pad", "k.pad", "v.pad", "p_part"}, names


def test_blocks_of_keys_that_a_mask_hides_are_not_read():
    kernel = text(model(16, 16, 4, 1, 1, True), "kernel", target="cuda")
    assert kernel.index("if matmul_online.b") < kernel.index("alloc k_cuda.pad")


@pytest.mark.parametrize("of", ALL.values(), ids=ALL)
def test_a_tile_fits_the_machine(of):
    for columns, block in ((64, 64), (128, 32), (9, 8)):
        found = attention_of(attention(100, 4 * block, block, columns)[1], of)
        asked = shape(found) if found else None
        for tile in attention_tiles(asked, of) if asked else ():
            assert registers(asked, tile) <= of.thread_registers
            assert shared_bytes(asked, tile, of) <= of.shared
            assert tile.threads <= of.block_threads
            assert tile.rows % tile.row_threads == 0


def test_it_is_for_machines_whose_threads_are_in_step():
    made = attention(64, 256, 64, 32)[1]
    assert Cuda(machine("sm_80")).estimated_cost(made)
    assert OpenCL(GENERIC).estimated_cost(made) is None


def test_a_single_query_is_none():
    assert attention_of(attention(1, 8, 4, 4)[1], SM80) is None


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("rows", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_ptxas_spills_nothing_and_finds_the_memory_that_the_model_counts(rows):
    """64 rows take more than the 48 KiB that code has without asking."""
    group = attention(256, 256, 64, 64)
    tile = AttentionTile(rows, rows // 4, 16)
    p = program(group, SM80, tile=tile)
    _, used = report.assemble(ptx(p, machine("sm_80")), machine("sm_80"))
    (kernel,) = used.values()
    assert kernel.spill_stores == kernel.stack == 0
    asked = shape(attention_of(group[1], SM80))
    counted = shared_bytes(asked, tile, SM80)
    assert kernel.shared in (counted, 0) and (kernel.shared == 0) == (
        counted > 48 << 10
    )
    assert kernel.registers <= 1.25 * registers(asked, tile)


@pytest.mark.parametrize(
    ("group", "causal"), [pytest.param(1, False, marks=pytest.mark.slow), (2, True)]
)
def test_a_model_is_one_kernel_and_right_as_ptx(monkeypatch, group, causal):
    monkeypatch.setattr(devices, "_makers", {"cuda": device.make})
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    devices.find.cache_clear()
    made = model(13, 16, 8, 2, group, causal)
    exe = tw.compile(made, target="cuda", cache=False)
    programs = [DeviceProgram.from_bytes(p, PTX) for p in exe.model.programs]
    assert [len(p.launches) for p in programs][-1] == 1
    # Besides: two copies of heads, and two that ask whether hidden keys count.
    assert len(programs) == (5 if causal else 1)
    rng = np.random.default_rng(0)
    shapes = ((1, 2 * group, 13, 8), (1, 2, 16, 8), (1, 2, 16, 8))
    given = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    np.testing.assert_allclose(exe(*given), reference(*given, causal), atol=2e-6)
    devices.find.cache_clear()
