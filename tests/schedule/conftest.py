"""The one check of every schedule test: same results, verified, and replayed from JSON."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.expr.nodes import Buffer
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.schedule import Schedule, Trace, replay


def _results(kernel: Kernel, seed: int = 0) -> list[np.ndarray]:
    """Every element of the outputs after a run on seeded data.

    Outputs start with random contents too, each element another, so that what a kernel leaves alone
    counts as much as what it writes.
    """
    rng = np.random.default_rng(seed)
    arrays = {b: _random(rng, b) for b in kernel.params}
    run(kernel, arrays)
    return [arrays[b] for b in kernel.outputs]


def _random(rng: np.random.Generator, b: Buffer) -> np.ndarray:
    if b.dtype.is_float:
        return rng.standard_normal(b.shape).astype(b.dtype.numpy)
    return rng.integers(-4, 5, b.shape).astype(b.dtype.numpy)


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
