"""Devices: copies and launches of a model in order, late as a device may be, saved and profiled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tilewright.base.errors import ArtifactError, ExecutionError
from tilewright.runtime import devices, host
from tilewright.runtime.device import Duration, HostDevice, MemoryRange
from tilewright.runtime.executable import Executable, load
from tilewright.runtime.model import (
    CompiledModel,
    CopyStep,
    DeviceCopyStep,
    HostFallbackStep,
    LaunchStep,
    Tensor,
    ValueSlot,
)

CLOCK = 1e6


def add(code: bytes):
    """`out = a + b` on float32, and how long that takes: a cycle for each element."""
    if code != b"add":
        raise ArtifactError("no program of this device")

    def run(arrays, timed):
        a, b, out = (x.view(np.float32) for x in arrays)
        np.add(a, b, out)
        if timed:
            return Duration(a.size / CLOCK, a.size, CLOCK, simulated=True)
        return None

    return run


@dataclass
class Late:
    """A device whose commands run when somebody waits for one behind them, and no sooner."""

    name: str = "late"
    capacity: int | None = None
    waits: int = 0

    def load(self, code: bytes):
        return add(code)

    def allocate(self, nbytes: int):
        return np.full(nbytes, 0xA5, np.uint8)

    def queue(self, timed: bool = False):
        return LateQueue(self)


@dataclass
class LateQueue:
    device: Late
    commands: deque = field(default_factory=deque)

    def _later(self, command: Callable[[], None]):
        self.commands.append(command)
        return LateEvent(self, command)

    def write(self, target: MemoryRange, source):
        return self._later(lambda: np.copyto(bytes_of(target), source))

    def read(self, target, source: MemoryRange):
        return self._later(lambda: np.copyto(target, bytes_of(source)))

    def launch(self, program, arguments: Sequence[MemoryRange]):
        arrays = [bytes_of(a) for a in arguments]
        return self._later(lambda: program(arrays, False) and None)


@dataclass
class LateEvent:
    queue: LateQueue
    command: Callable

    def wait(self) -> None:
        self.queue.device.waits += 1
        while self.command in self.queue.commands:
            self.queue.commands.popleft()()

    def duration(self) -> Duration:
        return Duration(0.5)


def bytes_of(region: MemoryRange):
    return region.memory[region.offset : region.offset + region.nbytes]


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(devices, "_makers", {})
    devices.find.cache_clear()
    devices.register("late", Late)
    devices.register("adder", lambda: HostDevice("adder", add))
    host.register("device-test", lambda op, attributes: lambda given: [2 * given[0]])
    yield
    devices.find.cache_clear()
    del host._factories["device-test"]


X = Tensor("x", "float32", (5,))


def slot(kind: str, at: int = 0) -> ValueSlot:
    return ValueSlot(kind, at, X)


def model(device: str) -> CompiledModel:
    """y = 2 * ((x + c) + c) + c, where the host doubles, and z = x: memory is used again."""
    host_step = HostFallbackStep(
        "device-test", "Double", {}, (slot("arena", 64),), (slot("arena", 0),), "double"
    )
    constant = np.zeros(64, np.uint8)
    constant[:20] = np.arange(5, dtype=np.float32).view(np.uint8)
    launch = LaunchStep(
        device, 0, (slot("device"), slot("constant"), slot("device", 64)), "add", ("n",)
    )
    again = replace(
        launch, arguments=(slot("device", 64), slot("constant"), slot("device"))
    )
    steps = (
        CopyStep(slot("input"), slot("arena", 0)),
        DeviceCopyStep(device, slot("arena", 0), slot("device")),
        launch,
        again,
        DeviceCopyStep(device, slot("device"), slot("arena", 64)),
        CopyStep(slot("arena", 0), slot("output", 1)),
        host_step,  # reads what the device wrote, and writes over what it read
        DeviceCopyStep(device, slot("arena", 0), slot("device")),
        launch,
        DeviceCopyStep(device, slot("device", 64), slot("output", 0)),
    )
    outputs = (Tensor("y", "float32", (5,)), Tensor("z", "float32", (5,)))
    return CompiledModel(
        (X,),
        outputs,
        steps,
        constants=constant,
        arena_bytes=128,
        programs=(b"add",),
        devices={device: 128},
    )


def expected(x):
    c = np.arange(5, dtype=np.float32)
    return 2 * (x + 2 * c) + c


x = np.linspace(-1, 1, 5).astype(np.float32)


@pytest.mark.parametrize("device", ["late", "adder"])
def test_steps_of_devices_and_of_the_host_run_in_order(device, tmp_path):
    exe = Executable(model(device))
    for _ in range(2):
        y, z = exe(x)
        np.testing.assert_array_equal(y, expected(x))
        np.testing.assert_array_equal(z, x)
    exe.save(tmp_path / "m.tw")
    y, _ = load(tmp_path / "m.tw")(x)
    np.testing.assert_array_equal(y, expected(x))


def test_from_device_to_device_goes_what_arrived():
    """No step of the host is between the two copies, and the queues know nothing of one another."""
    steps = (
        DeviceCopyStep("late", slot("input"), slot("device")),
        DeviceCopyStep("late", slot("device"), slot("arena")),
        DeviceCopyStep("adder", slot("arena"), slot("device")),
        DeviceCopyStep("adder", slot("device"), slot("output")),
    )
    made = replace(
        model("late"),
        outputs=(X,),
        steps=steps,
        programs=(),
        devices={"late": 64, "adder": 64},
    )
    np.testing.assert_array_equal(Executable(made)(x), x)


def test_launches_are_not_waited_for():
    exe = Executable(model("late"))
    device = devices.find("late")
    before = device.waits
    exe(x)
    assert device.waits - before == 4  # one for each copy, none for the three launches


def test_a_profile_says_which_time_is_simulated():
    profile = Executable(model("adder")).profile(x, repeat=3)
    names = [(r.name, r.kind, r.device, r.cycles) for r in profile.rows]
    assert names[1:4] == [
        ("copy x to adder", "device", "adder", None),
        ("add", "device", "adder", 5),
        ("add", "device", "adder", 5),
    ]
    assert ("Double", "host", "host", None) in names
    launches = [r for r in profile.rows if r.simulated]
    assert [r.seconds for r in launches] == [5e-6] * 3
    assert launches[0].clock == CLOCK
    text = str(profile)
    assert "adder: 15 cycles at 1 MHz, simulated; other times are measured" in text
    assert "add (adder)" in text and "Double (host)" in text
    late = Executable(model("late")).profile(x, repeat=2)
    assert not late.simulated and "simulated" not in str(late)
    assert [r.seconds for r in late.rows if r.kind == "device"] == [0.5] * 7


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ArtifactError, match="the device 'abacus', which is not there"):
        Executable(model("abacus"))


def test_code_that_is_not_the_device_s_is_refused():
    with pytest.raises(ArtifactError, match="kernel 'add': no program of this device"):
        Executable(replace(model("adder"), programs=(b"sub",)))


def test_a_failing_launch_is_named():
    def fails(code):
        def run(arrays, timed):
            raise ExecutionError("it has no power")

        return run

    devices.register("adder", lambda: HostDevice("adder", fails))
    with pytest.raises(ExecutionError, match="kernel 'add': it has no power"):
        Executable(model("adder"))(x)


D, A = slot("device"), slot("arena")
WRONG = {
    "is for 'pot', no device": DeviceCopyStep("pot", A, D),
    "is from arena to arena": DeviceCopyStep("adder", A, A),
    "is from device to device": DeviceCopyStep("adder", D, D),
    "a copy makes t: float32": DeviceCopyStep(
        "adder", A, ValueSlot("device", 0, Tensor("t", "float32", (1,)))
    ),
    "is at device 112 to 132": DeviceCopyStep("adder", A, slot("device", 112)),
    "is program 1, of 1": LaunchStep("adder", 1, (D, D, D), "add"),
    "uses memory outside 'adder'": LaunchStep("adder", 0, (D, A, D), "add"),
    "unknown place 'device'": CopyStep(A, D),
}


@pytest.mark.parametrize("message", WRONG)
def test_steps_that_make_no_sense_are_refused(message):
    with pytest.raises(ArtifactError, match=message):
        Executable(replace(model("adder"), steps=(WRONG[message],)))
