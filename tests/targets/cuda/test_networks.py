"""Whole networks as PTX, run by its interpreter: the same bits as on a processor."""

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import ArtifactError
from tilewright.runtime import devices
from tilewright.targets.cuda import report
from tilewright.targets.cuda.machine import machine
from tilewright.targets.simt.code import PTX, DeviceProgram
from tilewright.testing.graphs import Case
from tilewright.testing.networks import NETWORKS
from tilewright.testing.ptx import device

# Those whose sums are as long as the vectors of a processor, or that it does in order, have the
# same bits; of the others the order of sums differs.
SAME = ("lenet", "mobilenet_v2", "resnet_basic")
NEAR = ("bert", "gpt", "mobilenet_v3", "densenet", "unet", "vit", "yolo_v3")


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(devices, "_makers", {"cuda": device.make})
    devices.find.cache_clear()
    yield
    devices.find.cache_clear()


def outputs(exe: tw.Executable, case: Case) -> tuple[np.ndarray, ...]:
    found = exe(dict(case.inputs))
    return found if isinstance(found, tuple) else (found,)


def both(name: str, saved: Path | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """The outputs of a network as PTX and as native code; saved: the PTX is loaded from there."""
    case = NETWORKS[name]()
    ours = tw.compile(case.graph, target="cuda", mcpu="sm_80", math="exact")
    theirs = tw.compile(case.graph, mcpu="x86-64-v3", math="exact")
    assert {p[0] for p in ours.placements} == {"cuda"}
    if saved is not None:
        ours.save(saved)
        ours = tw.load(saved)
    found = [outputs(exe, case) for exe in (ours, theirs)]
    return list(zip(*found, strict=True))


@pytest.mark.slow  # `test_the_saved_network` compares one of them
@pytest.mark.parametrize("name", SAME)
def test_a_network_has_the_same_bits(interpreted, name):
    for ours, theirs in both(name):
        assert np.array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NEAR)
def test_a_network_agrees(interpreted, name):
    for ours, theirs in both(name):
        if theirs.dtype.kind == "f":
            scale = max(1.0, float(np.abs(theirs).max()))
            assert np.abs(ours - theirs).max() <= 2e-5 * scale
        else:
            assert np.array_equal(ours, theirs)


@pytest.mark.slow
def test_a_network_is_compiled_and_saved_without_a_gpu(tmp_path, monkeypatch):
    def missing() -> None:
        raise ArtifactError("there is no driver", code="TW-DEVICE")

    monkeypatch.setattr(devices, "_makers", {"cuda": missing})
    devices.find.cache_clear()
    case = NETWORKS["lenet"]()
    exe = tw.compile(case.graph, target="cuda", mcpu="sm_90a")
    exe.save(tmp_path / "lenet.tw")
    with pytest.raises(ArtifactError, match="there is no driver"):
        tw.load(tmp_path / "lenet.tw")
    with pytest.raises(ArtifactError, match="there is no driver"):
        outputs(exe, case)
    devices.find.cache_clear()


def test_the_saved_network_runs_where_there_is_a_device(tmp_path, interpreted):
    for ours, theirs in both("lenet", tmp_path / "lenet.tw"):
        assert np.array_equal(ours, theirs)


@pytest.mark.sampled(2)
@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ptxas_takes_each_kernel_of_a_network_and_nothing_is_spilled(arch):
    exe = tw.compile(NETWORKS["lenet"]().graph, target="cuda", mcpu=arch)
    for program in exe.model.programs:
        made = DeviceProgram.from_bytes(program, PTX)
        _, used = report.assemble(made.text, machine(arch))
        assert set(used) == {c.name for c in made.launches}
        for u in used.values():
            assert u.registers <= 64 and u.spill_stores == u.spill_loads == 0
