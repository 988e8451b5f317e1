"""When a program is given up before it is timed."""

from __future__ import annotations

import time

import pytest

from tilewright.tune.measure import trial
from tilewright.tune.measure.options import Timing


@pytest.mark.parametrize(
    ("seconds", "fastest", "calls"),
    [
        # The first call of a program of half a microsecond, as it was measured.
        ([5e-6, 0.9e-6, 0.5e-6], 0.9e-6, 1),
        (
            [5e-6] * 300,
            5e-6,
            199,
        ),  # it stays slow: a round's time of calls, then no more
        ([2e-3], 2e-3, 0),  # a long call has no cold start that matters
        ([1e-6], 1e-6, 0),
    ],
)
def test_a_cold_start_is_no_reason_to_give_up(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], fastest: float, calls: int
) -> None:
    first, *rest = seconds
    coming = iter(rest)
    monkeypatch.setattr(trial, "_seconds", lambda call, count, now: next(coming))
    timing = Timing(hopeless=10.0, round_seconds=1e-3)
    found = trial._without_a_cold_start(
        lambda: None, first, timing, 0.2e-6, time.perf_counter
    )
    assert found == fastest
    assert len(rest) - len(list(coming)) == pytest.approx(calls, abs=1)
