"""Calls as in a network: what is in the caches before them, and what their results cost after."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.tune.measure import trial as trials
from tilewright.tune.measure.options import Timing
from tilewright.tune.measure.trial import MeasuredTrial

CALL, NEAR = 1.0, 0.25


def trial(anchor):
    flood = np.ones(8, np.int64)
    timing = Timing("network", flood.nbytes)
    return MeasuredTrial("", [], 1, timing, 1e300, anchor, 1.0, flood)


@pytest.fixture
def clock(monkeypatch):
    """Seconds by what is timed: of the call, the anchor, and reads of results as they are given."""

    def made(call, anchor, reads):
        waiting = iter(reads)

        def seconds(function, count, now):
            function()
            if function is call:
                return CALL
            return 0.0 if function is anchor else next(waiting)

        monkeypatch.setattr(trials, "_seconds", seconds)

    return made


def timed(clock, reads, calls=1):
    def call():
        pass

    def anchor():
        return 0.0

    clock(call, anchor, [NEAR] * trials._READS + reads)
    x, y = np.ones(100, np.float32), np.ones(100, np.float32)
    return trials._in_network(call, [x], [y], trial(anchor), time.perf_counter)(calls)


def test_what_reading_the_results_takes_longer_counts(clock):
    assert timed(clock, [NEAR]) == CALL
    assert timed(clock, [3 * NEAR]) == CALL + 2 * NEAR
    assert timed(clock, [NEAR, 2 * NEAR], calls=2) == 2 * CALL + NEAR


def test_a_read_that_is_quicker_than_ever_is_no_gain(clock):
    assert timed(clock, [0.0]) == CALL


def test_before_each_call_inputs_are_what_they_were():
    """A program that overwrites its input, as one that works in place."""
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    seen = []

    def call():
        seen.append(x.copy())
        np.add(x, 1, out=y)
        x[:] = -1

    batch = trials._in_network(call, [x], [y], trial(lambda: 0.0), time.perf_counter)
    assert batch(2) > 0
    assert [s.tolist() for s in seen] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(("caches", "asked"), [("network", [1.0]), ("hot", [])])
def test_threads_are_awake_in_a_network(caches, asked):
    """Between its calls other data are read for milliseconds; in a model there is no such pause."""
    awake = []
    program = SimpleNamespace(
        inputs=(),
        outputs=(),
        threads=2,
        model=SimpleNamespace(devices=(), steps=()),
        bound=lambda arrays: lambda: None,
        stay_awake=awake.append,
    )
    given = trial(lambda: 1.0)
    given = replace(given, timing=replace(given.timing, caches=caches))
    assert trials._timed(program, given)["status"] == "ok"
    assert awake == asked


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (1000,)])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.bool_])
def test_results_of_every_size_are_read(shape, dtype):
    y = np.zeros(shape, dtype)
    batch = trials._in_network(
        lambda: None, [], [y], trial(lambda: 0.0), time.perf_counter
    )
    assert batch(1) >= 0
