"""The clock for timing calls."""

from __future__ import annotations

import time
from collections.abc import Callable

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
