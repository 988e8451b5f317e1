"""Which clock tells what a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from tilewright.runtime.executable import Executable
from tilewright.runtime.model import CopyStep, NativeStep

Now = Callable[[], float]


def clock_of(program: Executable) -> Now:
    """A clock for the calls of a program, in seconds.

    Where the calling thread does all the work, it is the processor's time of that thread: while
    another process has the processor, it stands still. Where there are several threads, or steps
    in Python, whose libraries may start some, it is the wall clock.
    """
    native = all(
        isinstance(step, NativeStep | CopyStep) for step in program.model.steps
    )
    return time.thread_time if native and program.threads == 1 else time.perf_counter
