"""Random programs under random primitives: what is permitted never changes a result.

Interpreted and compiled, against the program without a schedule.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.driver.single import build_kernel
from tilewright.loops.nodes import AXES, Kernel
from tilewright.loops.verify import verify
from tilewright.runtime.executable import Executable
from tilewright.schedule import Schedule, Step, replay
from tilewright.schedule.tree import loops_of
from tilewright.targets.registry import target
from tilewright.testing.random_kernels import random_kernel
from tilewright.testing.random_schedules import random_schedule

BATCHES = 40


def native(kernel: Kernel, inputs: list[np.ndarray]) -> list[np.ndarray]:
    results = Executable(build_kernel(kernel, target("cpu")), threads=2)(*inputs)
    return list(results) if isinstance(results, tuple) else [results]


def same(want: list[np.ndarray], got: list[np.ndarray], s: Schedule, step: Step | None) -> None:
    for a, b in zip(want, got, strict=True):
        if not np.array_equal(a, b):
            raise AssertionError(f"{step or 'compiled code'} is wrong:\n{s.diff()}\n{s.trace}")


def run_once(seed: int, results, each_step: bool) -> None:
    """One schedule: checked by the interpreter after each step or at the end, and compiled."""
    r = random.Random(seed)
    kernel = random_kernel(r)
    want = results(kernel)

    def check(s: Schedule, step: Step | None) -> None:
        verify(s.kernel)
        same(want, results(s.kernel), s, step)

    s = random_schedule(r, kernel, after=check if each_step else None)
    check(s, None)
    assert repr(replay(kernel, s.trace)) == repr(s.kernel)
    if not any(f.kind in AXES for f in loops_of(s.kernel.body)):
        rng = np.random.default_rng(0)
        data = {b: rng.integers(-4, 5, b.shape).astype("int32") for b in kernel.inputs}
        same(want, native(s.kernel, list(data.values())), s, None)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**9))
def test_every_step_of_a_random_schedule_keeps_the_result(seed, results):
    run_once(seed, results, each_step=True)


@pytest.mark.parametrize("batch", range(4))
def test_300_random_schedules_agree_interpreted_and_compiled(batch, results):
    for seed in range(batch, 300, 4):
        run_once(seed, results, each_step=False)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_10000_random_schedules_agree_interpreted_and_compiled(batch, results):
    for seed in range(1000 + batch, 11_000, BATCHES):
        run_once(seed, results, each_step=False)
