"""What goes wrong on a device is one line of ours, and the process goes on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.opencl.fake import DEVICE, FakeOpenCL
from tests.targets.opencl.running import X, launched
from tilewright.base.dtypes import float32, int32
from tilewright.base.errors import ExecutionError, MemoryLimitError
from tilewright.expr.nodes import INDEX, Buffer, Cast
from tilewright.loops.nodes import Store
from tilewright.runtime.device import MemoryRange
from tilewright.targets.opencl import device as module
from tilewright.targets.opencl.device import OpenCLDevice
from tilewright.targets.opencl.emit import emit
from tilewright.targets.opencl.failures import FAILURES

DATA, TABLE = Buffer("x", (4,), float32), Buffer("i", (4,), int32)
# One launch whose index is data, so that it also tells wrong ones.
CODE = emit(
    launched(Store(DATA, (X,), DATA[Cast(TABLE[X], INDEX)]), [DATA, TABLE], threads=4)
).to_bytes()


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeOpenCL:
    made = FakeOpenCL()
    monkeypatch.setattr(module, "imported", lambda: made)
    monkeypatch.setattr(module, "default_store", lambda: None)
    return made


def called() -> None:
    """One call: memory, a program, a launch, and its results."""
    device = OpenCLDevice(DEVICE)
    queue, program = device.queue(), device.load(CODE)
    there = [MemoryRange(device.allocate(16), 0, 16) for _ in range(2)]
    queue.write(there[0], np.zeros(16, np.uint8)).wait()
    queue.launch(program, there)
    queue.read(np.zeros(16, np.uint8), there[0]).wait()


ENDED = "ran for too long"
FULL = "out of memory or resources"


@pytest.mark.parametrize(
    ("call", "error", "kind", "message"),
    [
        ("Buffer", "MEM_OBJECT_ALLOCATION_FAILURE", MemoryLimitError, FULL),
        ("Buffer", "OUT_OF_HOST_MEMORY", MemoryLimitError, FULL),
        ("Context", "OUT_OF_HOST_MEMORY", MemoryLimitError, FULL),
        ("CommandQueue", "OUT_OF_RESOURCES", MemoryLimitError, FULL),
        ("Kernel", "OUT_OF_RESOURCES", MemoryLimitError, FULL),
        ("set_args", "OUT_OF_RESOURCES", MemoryLimitError, FULL),
        ("clEnqueueNDRangeKernel", "OUT_OF_RESOURCES", MemoryLimitError, FULL),
        ("enqueue_fill_buffer", "OUT_OF_RESOURCES", MemoryLimitError, FULL),
        ("enqueue_copy", "MEM_OBJECT_ALLOCATION_FAILURE", MemoryLimitError, FULL),
        ("clWaitForEvents", "MEM_OBJECT_ALLOCATION_FAILURE", MemoryLimitError, FULL),
        ("clWaitForEvents", "OUT_OF_RESOURCES", ExecutionError, ENDED),
        (
            "clWaitForEvents",
            "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
            ExecutionError,
            ENDED,
        ),
        ("enqueue_copy", "INVALID_COMMAND_QUEUE", ExecutionError, "restart"),
        ("Buffer", "INVALID_CONTEXT", ExecutionError, "restart the process"),
        ("Context", "DEVICE_NOT_AVAILABLE", ExecutionError, "restart the process"),
        ("enqueue_copy", "INVALID_VALUE", ExecutionError, "INVALID_VALUE"),
    ],
)
def test_an_error_is_one_line_and_the_next_call_runs(api, call, error, kind, message):
    api.fails[call] = [error]
    with pytest.raises(kind, match=message) as caught:
        called()
    assert "\n" not in str(caught.value) and error in str(caught.value)
    called()


@pytest.mark.parametrize("before", [0, 1, 2])
def test_each_wait_of_a_call_is_explained(api, before):
    """The write, the read, and what the kernels told of their indices."""
    event = api.called

    def late(name: str) -> None:
        nonlocal before
        if name == "clWaitForEvents":
            before -= 1
            if before == -1:
                api.fails[name] = ["OUT_OF_RESOURCES"]
        event(name)

    api.called = late
    with pytest.raises(ExecutionError, match=ENDED):
        called()
    assert before == -1
    called()


def test_a_queue_goes_on_after_a_kernel_that_was_ended(api):
    device = OpenCLDevice(DEVICE)
    queue, program = device.queue(), device.load(CODE)
    there = [MemoryRange(device.allocate(16), 0, 16) for _ in range(2)]
    for fails in (["OUT_OF_RESOURCES"], []):
        queue.launch(program, there)
        event = queue.read(np.zeros(16, np.uint8), there[0])
        api.fails["clWaitForEvents"] = fails
        if fails:
            with pytest.raises(ExecutionError, match=ENDED):
                event.wait()
        else:
            event.wait()


def test_each_row_is_the_first_that_fits_its_words():
    for n, (words, (_, code, message, hint)) in enumerate(FAILURES):
        text = " failed: ".join(words)
        first = next(
            i for i, (w, _) in enumerate(FAILURES) if all(x in text for x in w)
        )
        assert first == n and code.startswith("TW-") and message and hint
