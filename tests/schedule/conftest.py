"""The one check of every schedule test: same results, verified, and replayed from JSON."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.schedule import Schedule, Trace, replay


def _results(kernel: Kernel, seed: int = 0) -> list[np.ndarray]:
    """The outputs of a run on seeded data; outputs start as a value that no kernel computes."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for b in kernel.params:
        if b in kernel.outputs:
            arrays[b] = np.full(b.shape, 77, b.dtype.numpy)
        elif b.dtype.is_float:
            arrays[b] = rng.standard_normal(b.shape).astype(b.dtype.numpy)
        else:
            arrays[b] = rng.integers(-4, 5, b.shape).astype(b.dtype.numpy)
    run(kernel, arrays)
    return [arrays[b] for b in kernel.outputs]


def _check_same(before: Kernel, schedule: Schedule, exact: bool = False) -> None:
    after = schedule.kernel
    verify(after)
    for want, got in zip(_results(before), _results(after), strict=True):
        if exact:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    trace = Trace.from_json(schedule.trace.to_json())
    assert trace == schedule.trace
    assert repr(replay(before, trace)) == repr(after)


@pytest.fixture
def check_same() -> Callable[..., None]:
    """check_same(kernel, schedule, exact=False)."""
    return _check_same


@pytest.fixture
def results() -> Callable[..., list[np.ndarray]]:
    """results(kernel, seed=0)."""
    return _results
