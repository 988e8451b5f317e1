"""The clocks for timing calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.runtime.executable import Executable
from tilewright.runtime.model import CopyStep, NativeStep

Now = Callable[[], float]


def clock_of(program: Executable) -> Now:
    """A clock for the calls of a program, in seconds.

    If the calling thread does all the work, it is the CPU time of that thread, which excludes the
    time of other processes. With several threads, or with steps in Python, whose libraries may
    start threads, it is the wall clock.
    """
    native = all(
        isinstance(step, NativeStep | CopyStep) for step in program.model.steps
    )
    return time.thread_time if native and program.threads == 1 else time.perf_counter


class DeviceCalls:
    """Calls of a model for a device, timed by its clock: only what its launches take."""

    def __init__(
        self, program: Executable, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        self._program, self._inputs, self._outputs = program, inputs, outputs
        self._seconds = 0.0

    def __call__(self) -> None:
        self._seconds += self._program.launch_seconds(self._inputs, self._outputs)

    def now(self) -> float:
        """The seconds that the launches of all calls have taken so far."""
        return self._seconds
