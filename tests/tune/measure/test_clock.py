"""What a program's time is read from."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tilewright.runtime.executable import Executable
from tilewright.runtime.model import HostFallbackStep, NativeStep
from tilewright.tune.measure import trial
from tilewright.tune.measure.clock import clock_of

NATIVE = NativeStep("kernel", (), ())
HOST = HostFallbackStep("onnx", "Sort", {}, (), (), "node")


def program(threads: int, *steps: object) -> Executable:
    """What a clock is chosen by."""
    made: Any = SimpleNamespace(threads=threads, model=SimpleNamespace(steps=steps))
    return cast(Executable, made)


@pytest.mark.parametrize(
    ("threads", "steps"), [(2, [NATIVE]), (1, [HOST]), (1, [NATIVE, HOST])]
)
def test_what_other_threads_may_do_is_read_from_the_wall(
    threads: int, steps: list[object]
) -> None:
    assert clock_of(program(threads, *steps)) is time.perf_counter


def test_time_without_the_processor_does_not_count() -> None:
    """A thread that sleeps is as one that waits while another process has the processor."""
    now = clock_of(program(1, NATIVE))
    assert trial._seconds(lambda: time.sleep(0.02), 1, now) < 0.01


def test_time_on_the_processor_counts() -> None:
    def work() -> None:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass

    assert trial._seconds(work, 1, clock_of(program(1, NATIVE))) >= 0.01
