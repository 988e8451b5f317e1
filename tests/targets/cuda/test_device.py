"""The device by the driver's API, against a double of the bindings; and what is said without it."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from tests.targets.cuda.fake import CUresult, Fake
from tests.targets.cuda.running import program
from tests.targets.cuda.test_emit import REVERSE
from tilewright.base.errors import ArtifactError, ExecutionError, MemoryLimitError
from tilewright.runtime import devices
from tilewright.runtime.device import MemoryRange
from tilewright.targets.cuda import driver
from tilewright.targets.cuda.device import CudaDevice
from tilewright.targets.cuda.driver import ERRORS
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import code_of
from tilewright.targets.simt.code import OPENCL_C, PTX, DeviceProgram


def code(text: str = REVERSE, name: str = "sm_80") -> DeviceProgram:
    p = program(text)
    return code_of(p, ptx(p, machine(name)), machine(name))


def region(device: CudaDevice, nbytes: int, offset: int = 0) -> MemoryRange:
    return MemoryRange(device.allocate(nbytes + offset), offset, nbytes)


def bytes_of(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint8)


def test_a_program_is_read_back_from_its_bytes():
    made = code()
    assert DeviceProgram.from_bytes(made.to_bytes(), PTX) == made
    for wrong in (b"", b"{}", b"[1]\n", made.to_bytes()[:-1], made.to_bytes() + b"x"):
        with pytest.raises(ArtifactError, match="not in PTX"):
            DeviceProgram.from_bytes(wrong, PTX)


def test_a_program_in_another_language_is_refused():
    with pytest.raises(ArtifactError, match="not in OpenCL C: it is in PTX"):
        DeviceProgram.from_bytes(code().to_bytes(), OPENCL_C)


def test_a_grid_without_threads_is_refused():
    (call,) = code().launches
    raw = replace(code(), launches=(replace(call, grid=(0, 1, 1)),)).to_bytes()
    with pytest.raises(ArtifactError, match="a grid without threads"):
        DeviceProgram.from_bytes(raw, PTX)


def test_a_grid_without_blocks_is_no_launch():
    empty = program(REVERSE.replace("grid [2, 1, 1]", "grid [0, 1, 1]"))
    assert not code_of(empty, "", machine()).launches


def test_a_launch_on_a_buffer_that_is_not_there_is_refused():
    raw = code().to_bytes().replace(b'"arguments": [0, 1]', b'"arguments": [0, 2]')
    with pytest.raises(ArtifactError, match="more than 2 buffers"):
        DeviceProgram.from_bytes(raw, PTX)


def test_a_launch_has_its_grid_its_memory_and_its_addresses():
    api = Fake()
    device = CudaDevice(api)
    loaded = device.load(code().to_bytes())
    x, y = region(device, 512), region(device, 512, 256)
    device.queue().launch(loaded, [x, y]).wait()
    ((kernel, *rest),) = api.launches
    grid, threads, dynamic = tuple(rest[:3]), tuple(rest[3:6]), rest[6]
    assert kernel == "cuModuleGetFunction"
    assert (grid, threads, dynamic) == ((2, 1, 1), (64, 1, 1), 0)
    values, kinds = rest[8]
    status = device.status.address
    assert values == (x.memory.address, y.memory.address + 256, status)
    assert len(kinds) == 3


def test_memory_that_needs_asking_for_is_asked_for():
    api = Fake()
    device = CudaDevice(api)
    device.load(code().to_bytes())
    assert "FuncSetAttribute" not in api.calls
    big = REVERSE.replace("t: float32[64]", "t: float32[20000]")
    loaded = device.load(code(big).to_bytes())
    assert "FuncSetAttribute" in api.calls
    x = region(device, 512)
    device.queue().launch(loaded, [x, x]).wait()
    assert api.launches[0][7] == 80_000


def test_copies_arrive_and_a_wrong_index_is_told_once():
    device = CudaDevice(Fake())
    queue, there = device.queue(), region(device, 16)
    back = np.zeros(16, np.uint8)
    queue.write(there, bytes_of(16)).wait()
    queue.read(back, there).wait()
    assert np.array_equal(back, bytes_of(16))
    queue.write(MemoryRange(device.status, 0, 8), bytes_of(8)).wait()
    event = queue.read(back, there)
    with pytest.raises(ExecutionError, match="out of range"):
        event.wait()
    queue.read(back, there).wait()


def test_a_sequence_that_comes_again_is_recorded_once_and_runs_as_a_graph():
    api = Fake()
    device = CudaDevice(api)
    loaded, queue = device.load(code().to_bytes()), device.queue()
    x, y = region(device, 512), region(device, 512)

    def run() -> list[str]:
        api.calls.clear()
        api.launches.clear()
        queue.launch(loaded, [x, y])
        queue.launch(loaded, [y, x])
        queue.read(np.zeros(512, np.uint8), x).wait()
        return [c for c in api.calls if "Launch" in c or "Graph" in c or "Capture" in c]

    assert run() == ["LaunchKernel"] * 2
    recorded = [
        "StreamBeginCapture",
        "LaunchKernel",
        "LaunchKernel",
        "StreamEndCapture",
    ]
    again = ["GraphInstantiate", "GraphDestroy", "GraphLaunch"]
    assert run() == recorded + again
    assert run() == ["GraphLaunch"]
    x = region(device, 512)
    assert run() == ["LaunchKernel"] * 2


def test_a_launch_waits_for_nothing_until_results_are_asked_for():
    api = Fake()
    device = CudaDevice(api)
    loaded, queue, x = (
        device.load(code().to_bytes()),
        device.queue(),
        region(device, 512),
    )
    event = queue.launch(loaded, [x, x])
    assert not api.launches
    event.wait()
    assert len(api.launches) == 1 and api.calls[-1] == "StreamSynchronize"


@pytest.mark.usefixtures("own_garbage")
def test_a_queue_that_is_timed_has_the_time_of_each_command():
    api = Fake()
    device = CudaDevice(api)
    loaded, queue, x = (
        device.load(code().to_bytes()),
        device.queue(True),
        region(device, 512),
    )
    events = [
        queue.write(x, bytes_of(512)),
        queue.launch(loaded, [x, x]),
        queue.read(np.zeros(512, np.uint8), x),
    ]
    for event in events:
        event.wait()
        assert event.duration().seconds == pytest.approx(2.5e-3)
    del event, events
    gc.collect()
    assert api.calls.count("EventDestroy") == api.calls.count("EventCreate") == 6


@pytest.mark.usefixtures("own_garbage")
def test_memory_is_given_back_when_nothing_refers_to_it():
    api = Fake()
    device = CudaDevice(api)
    made = device.allocate(100)
    address = made.address
    del made
    gc.collect()
    assert api.freed == [address]


@pytest.mark.parametrize(
    ("call", "error", "kind", "message"),
    [
        ("Init", "NO_DEVICE", ArtifactError, "there is no NVIDIA GPU"),
        ("MemAllocAsync", "OUT_OF_MEMORY", MemoryLimitError, "GPU has no memory left"),
        ("ModuleLoadData", "INVALID_PTX", ArtifactError, "the driver refuses the PTX"),
        (
            "ModuleLoadData",
            "UNSUPPORTED_PTX_VERSION",
            ArtifactError,
            "driver is too old",
        ),
        ("LaunchKernel", "LAUNCH_TIMEOUT", ExecutionError, "ran for too long"),
        ("StreamSynchronize", "ILLEGAL_ADDRESS", ExecutionError, "does not have"),
        (
            "StreamCreate",
            "NOT_PERMITTED",
            ExecutionError,
            "cuStreamCreate failed: CUDA_",
        ),
    ],
)
def test_an_error_of_the_driver_is_one_line_of_ours(call, error, kind, message):
    api = Fake({call: CUresult[f"CUDA_ERROR_{error}"]})
    with pytest.raises(kind, match=message) as raised:
        device = CudaDevice(api)
        loaded = device.load(code().to_bytes())
        x = region(device, 512)
        device.queue().launch(loaded, [x, x]).wait()
    assert "\n" not in str(raised.value)
    assert error in str(raised.value)


def test_each_error_of_the_table_says_what_it_means():
    for kind, name, message, _ in ERRORS.values():
        assert issubclass(kind, Exception) and name.startswith("TW-") and message


@pytest.mark.parametrize(
    ("has", "name", "message"),
    [
        ({"COMPUTE_CAPABILITY_MAJOR": 7}, "sm_80", r"code is for sm_80.*GPU is sm_70"),
        ({"COMPUTE_CAPABILITY_MAJOR": 10}, "sm_90a", r"for sm_90a.*is sm_100.*without"),
        (
            {"MAX_THREADS_PER_BLOCK": 32},
            "sm_80",
            r"kernel reverse: a block takes 64 thr",
        ),
        (
            {"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 128},
            "sm_80",
            r"takes 256 bytes of shared memory, but this GPU has 128",
        ),
        ({"MEMORY_POOLS_SUPPORTED": 0}, "sm_80", "does not support memory pools"),
    ],
)
def test_what_a_gpu_cannot_run_is_refused_before_it_is_given_to_it(has, name, message):
    api = Fake(**has)
    with pytest.raises(ArtifactError, match=message):
        CudaDevice(api).load(code(name=name).to_bytes())
    assert "ModuleLoadData" not in api.calls


def test_code_of_an_older_architecture_runs_on_a_later_one():
    CudaDevice(Fake(COMPUTE_CAPABILITY_MAJOR=9)).load(code(name="sm_80").to_bytes())
    CudaDevice(Fake(COMPUTE_CAPABILITY_MAJOR=9)).load(code(name="sm_90a").to_bytes())


def test_without_the_bindings_it_is_said_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(ArtifactError, match=r"cuda-bindings.*pip install") as raised:
        driver.bindings()
    assert raised.value.code == "TW-DEVICE"


def test_without_the_driver_it_is_said_that_it_is_missing():
    class Missing:
        def cuInit(self, flags: int) -> None:
            raise RuntimeError("Failed to dlopen libcuda.so.1")

    with pytest.raises(ArtifactError, match=r"NVIDIA's driver.*libcuda") as raised:
        CudaDevice(Missing())
    assert raised.value.code == "TW-DEVICE"


def test_here_the_device_is_found_or_says_what_is_missing(monkeypatch):
    pytest.importorskip("cuda.bindings")
    monkeypatch.setattr(devices, "_makers", {})
    devices.find.cache_clear()
    try:
        assert devices.find("cuda").name == "cuda"
    except ArtifactError as error:
        assert error.code == "TW-DEVICE"
    devices.find.cache_clear()
