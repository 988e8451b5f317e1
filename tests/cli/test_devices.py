"""Models for devices that are not there, or cannot run them: one line each, the program goes on."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tests.targets.cuda.fake import Fake, RunningFake
from tests.targets.opencl.running import pocl
from tilewright.base.errors import ArgumentError, ArtifactError, MemoryLimitError
from tilewright.runtime import devices
from tilewright.runtime.executable import Executable
from tilewright.targets.cuda.device import CudaDevice
from tilewright.targets.opencl import platforms
from tilewright.targets.opencl.device import OpenCLDevice


@pytest.fixture
def device(monkeypatch):
    """Register what makes the devices of a name in this test."""

    def register(name, make):
        monkeypatch.setattr(devices, "_makers", {name: make})
        devices.find.cache_clear()

    devices.find.cache_clear()
    yield register
    devices.find.cache_clear()


def refused(command, said, *line):
    """A command fails with one line; another one, without the device, still works."""
    found = command(*line)
    (told,) = (x for x in found.err.splitlines() if x.startswith("tilewright: "))
    assert found.code == 1
    assert said in told, told
    assert "Traceback" not in found.err
    assert command("run", line[1], "--target", "cpu").code == 0


def without_driver():
    class Missing:
        def cuInit(self, flags: int) -> None:
            raise RuntimeError("Failed to dlopen libcuda.so.1")

    return CudaDevice(Missing())


def test_cuda_without_a_driver(command, perceptron, device):
    device("cuda", without_driver)
    refused(command, "NVIDIA's driver", "run", perceptron, "--target", "cuda")


def test_cuda_without_a_device(command, perceptron, device):
    from cuda.bindings.driver import CUresult

    no_gpu = {"Init": CUresult.CUDA_ERROR_NO_DEVICE}
    device("cuda", lambda: CudaDevice(Fake(no_gpu)))
    refused(command, "there is no NVIDIA GPU", "run", perceptron, "--target", "cuda")


def test_opencl_without_its_package(command, perceptron, device, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    refused(
        command, "needs the package pyopencl", "run", perceptron, "--target", "opencl"
    )


def test_opencl_that_nothing_supplies(command, perceptron, device, monkeypatch):
    cl = platforms.imported()

    def none():
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", none)
    refused(
        command, "nothing here supplies OpenCL", "run", perceptron, "--target", "opencl"
    )


def test_opencl_without_a_device(command, perceptron, device, monkeypatch):
    monkeypatch.setattr(platforms, "listed", list)
    refused(
        command, "no OpenCL device is there", "run", perceptron, "--target", "opencl"
    )


def test_an_artifact_of_another_architecture(command, perceptron, device, tmp_path):
    made = tmp_path / "m.tw"
    line = ("--target", "cuda", "--mcpu", "sm_90a", "-o", made)
    assert command("compile", perceptron, *line).code == 0
    device("cuda", lambda: CudaDevice(Fake(COMPUTE_CAPABILITY_MAJOR=8)))
    found = command("run", made)
    (told,) = (x for x in found.err.splitlines() if x.startswith("tilewright: "))
    assert found.code == 1
    assert "the code is for sm_90a" in told and "sm_80" in told


def test_an_architecture_that_there_is_none_of(command, perceptron):
    line = ("--target", "cuda", "--mcpu", "sm_55", "-o", "unused.tw")
    found = command("compile", perceptron, *line)
    assert found.code == 1
    assert "unknown GPU architecture 'sm_55'; known: sm_70" in found.err


# -- what a device lacks


@pytest.mark.parametrize(("spare", "fits"), [(-1, False), (8, True)])
def test_memory_of_a_gpu_is_planned_before_anything_is_allocated(
    perceptron, device, spare, fits
):
    model = tw.compile(str(perceptron), target="cuda", cache=False).model
    slots = {
        a.at: a.tensor
        for s in model.launches
        for a in s.arguments
        if a.kind == "constant"
    }
    fixed, between = sum(t.nbytes for t in slots.values()), model.devices["cuda"]
    assert fixed == 4 * (8 * 16 + 16 + 16 * 4) and between > 0
    api = RunningFake(total=fixed + between + spare)
    device("cuda", lambda: CudaDevice(api))
    given = np.ones((2, 8), np.float32)
    if fits:
        assert Executable(model)(given).shape == (2, 4)
        return
    with pytest.raises(MemoryLimitError) as caught:
        Executable(model)(given)
    said = f"{fixed:,} for constants, {between:,} between the kernels"
    assert said in str(caught.value) and "device cuda, which has" in str(caught.value)
    assert caught.value.code == "TW-DEVICE-MEMORY" and caught.value.hint
    assert api.calls.count("MemAllocAsync") == 1  # what every device has for itself


def plenty(perceptron):
    """A model, and the bytes that it needs on a GPU."""
    model = tw.compile(str(perceptron), target="cuda", cache=False).model
    slots = [a for s in model.launches for a in s.arguments if a.kind == "constant"]
    fixed = sum({a.at: a.tensor.nbytes for a in slots}.values())
    return model, fixed + model.devices["cuda"]


@pytest.mark.parametrize(("spare", "fits"), [(-1, False), (0, True)])
def test_memory_that_other_programs_have_counts(perceptron, device, spare, fits):
    """What the driver says is free, less what each device has for itself."""
    model, needed = plenty(perceptron)
    api = RunningFake(total=1 << 20, others=(1 << 20) - needed - spare - 8)
    device("cuda", lambda: CudaDevice(api))
    given = np.ones((2, 8), np.float32)
    if fits:
        assert Executable(model)(given).shape == (2, 4)
        return
    with pytest.raises(MemoryLimitError) as caught:
        Executable(model)(given)
    said = f"which has {needed - 1:,} of {1 << 20:,} left: "
    assert said in str(caught.value) and "end what else" in caught.value.hint
    assert caught.value.code == "TW-DEVICE-MEMORY" and not api.launches
    assert api.calls.count("MemAllocAsync") == 1


def test_memory_that_our_pool_keeps_is_free(perceptron, device):
    model, needed = plenty(perceptron)
    api = RunningFake(total=1 << 20, others=(1 << 20) - needed - 8)
    api.pooled = needed
    device("cuda", lambda: CudaDevice(api))
    assert Executable(model)(np.ones((2, 8), np.float32)).shape == (2, 4)


# -- several GPUs


def several(device, count):
    api = RunningFake(count=count)
    device("cuda", lambda index=0: CudaDevice(api, index))
    return api


def test_a_model_runs_on_the_gpu_of_a_number(perceptron, device, tmp_path):
    """Its memory belongs to that GPU, as does what its kernels touch."""
    api = several(device, 2)
    made = tw.compile(str(perceptron), target="cuda", cache=False)
    made.save(tmp_path / "m.tw")
    given = np.ones((2, 8), np.float32)
    first, second = tw.load(tmp_path / "m.tw"), tw.load(tmp_path / "m.tw", device=1)
    np.testing.assert_array_equal(first(given), second(given))
    np.testing.assert_array_equal(first(given), second(given))
    assert {"context 0", "context 1"} == set(api.owners.values())
    assert devices.find("cuda", 1).dlpack == (2, 1)


@pytest.mark.parametrize(("count", "known"), [(1, "device 0"), (3, "devices 0 to 2")])
def test_a_gpu_of_an_unknown_number_is_refused(perceptron, device, count, known):
    several(device, count)
    model = tw.compile(str(perceptron), target="cuda", cache=False).model
    with pytest.raises(ArtifactError, match="no NVIDIA GPU of the number 3") as caught:
        Executable(model, device=3)
    assert caught.value.code == "TW-DEVICE" and known in caught.value.hint


def test_a_device_that_has_no_others_refuses_a_number(perceptron, device):
    device("cuda", lambda: CudaDevice(RunningFake()))
    model = tw.compile(str(perceptron), target="cuda", cache=False).model
    with pytest.raises(ArtifactError, match="only one device 'cuda', but device=1"):
        Executable(model, device=1)


@pytest.mark.parametrize("ranges", [False, True])
def test_a_model_of_the_processor_alone_refuses_a_number(symbolic, tmp_path, ranges):
    how = (
        {"dims": {"batch": (1, 3)}, "jit": False} if ranges else {"dims": {"batch": 2}}
    )
    tw.compile(str(symbolic), **how).save(tmp_path / "m.tw")
    assert tw.load(tmp_path / "m.tw", device=0).threads
    with pytest.raises(ArtifactError, match="on the processor alone, but device=1"):
        tw.load(tmp_path / "m.tw", device=1)


@pytest.mark.parametrize("wrong", [-1, 1.0, True, "1"])
def test_a_number_that_is_none_is_refused(perceptron, tmp_path, wrong):
    tw.compile(str(perceptron), target="cpu").save(tmp_path / "m.tw")
    with pytest.raises(ArgumentError, match="device"):
        tw.load(tmp_path / "m.tw", device=wrong)


def test_a_model_that_an_opencl_device_has_no_memory_for(command, perceptron, device):
    made = OpenCLDevice(pocl().device)
    made.capacity = 100
    device("opencl", lambda: made)
    said = "bytes on device opencl, which has 100: 832 for constants"
    refused(command, said, "run", perceptron, "--target", "opencl")


class Less:
    """A device with less of something."""

    def __init__(self, device, **less) -> None:
        self._device, self._less = device, less

    def __getattr__(self, name):
        return self._less[name] if name in self._less else getattr(self._device, name)


@pytest.mark.parametrize(
    ("less", "said"),
    [
        ({"max_work_group_size": 4}, "threads of a block, and"),
        ({"local_mem_size": 2}, "bytes of shared memory, and"),
    ],
)
def test_a_kernel_that_takes_more_than_an_opencl_device_has(less, said):
    made = OpenCLDevice(pocl().device)
    made.device = Less(made.device, **less)
    kernel = SimpleNamespace(name="k", threads=(8, 1, 1), shared=4, constants=())
    with pytest.raises(ArtifactError, match=said) as caught:
        made._check(kernel)
    assert caught.value.code == "TW-DEVICE"
    assert "\n" not in str(caught.value)
