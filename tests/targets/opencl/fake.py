"""A double of pyopencl with one device, whose calls fail as they are told to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

NAMES = ("Context", "Buffer", "Kernel", "CommandQueue", "enqueue_fill_buffer")
DEVICE = SimpleNamespace(
    name="Fake ",
    platform=SimpleNamespace(name="Fake platform", version="OpenCL 1.2"),
    version="OpenCL 1.2",
    driver_version="1",
    max_mem_alloc_size=1 << 20,
    global_mem_size=1 << 22,
    max_constant_buffer_size=1 << 16,
    max_constant_args=8,
    max_work_group_size=1024,
    local_mem_size=1 << 15,
    single_fp_config=0,
)


class FakeError(Exception):
    """pyopencl.Error."""


class FakeEvent:
    """The end of a command, which fails as `clWaitForEvents`."""

    def __init__(self, api: FakeOpenCL) -> None:
        self.api = api

    def wait(self) -> None:
        self.api.called("clWaitForEvents")


class FakeOpenCL:
    """fails: the error of a call by its name, each as often as it is there."""

    Error = FakeError
    CompilerWarning = UserWarning
    mem_flags = SimpleNamespace(READ_WRITE=1)
    command_queue_properties = SimpleNamespace(PROFILING_ENABLE=2)
    device_fp_config = SimpleNamespace(CORRECTLY_ROUNDED_DIVIDE_SQRT=1)
    program_info = SimpleNamespace(BINARIES=1)

    def __init__(self) -> None:
        self.fails: dict[str, list[str]] = {}

    def called(self, name: str) -> None:
        """Raise the next error of a call, if there is one."""
        if self.fails.get(name):
            raise FakeError(f"{name} failed: {self.fails[name].pop(0)}")

    def __getattr__(self, name: str) -> Any:
        if name not in NAMES:
            raise AttributeError(name)

        def call(*arguments: Any, **_: Any) -> Any:
            self.called(name)
            return SimpleNamespace(set_args=lambda *values: self.called("set_args"))

        return call

    def Program(self, *arguments: Any) -> Any:
        def build(*_: Any, **__: Any) -> Any:
            self.called("build")
            return SimpleNamespace(get_info=lambda _: [b""])

        return SimpleNamespace(build=build)

    def enqueue_nd_range_kernel(self, *_: Any) -> FakeEvent:
        self.called("clEnqueueNDRangeKernel")
        return FakeEvent(self)

    def enqueue_copy(self, queue: Any, to: Any, source: Any, **_: Any) -> FakeEvent:
        self.called("enqueue_copy")
        if isinstance(to, np.ndarray):
            to[:] = 0
        return FakeEvent(self)
