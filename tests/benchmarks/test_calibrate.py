"""What calibration writes is a description that the compiler takes."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import calibrate, native_loops
from tilewright.targets.cpu.cost import CALIBRATE, constants, cost_model
from tilewright.targets.cpu.description import FACTS, described
from tilewright.targets.cpu.machine import host


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_loops, "SECONDS", 0.004)
    monkeypatch.setattr(calibrate, "SIZES", (16, 96))


def test_the_description_has_all_that_calibration_is_for() -> None:
    given = tomllib.loads(calibrate.description(2))
    assert set(FACTS) <= set(given)
    measured = {c.name for c in constants() if c.source == CALIBRATE}
    assert measured - {"share_ns"} <= set(given["costs"]) <= measured
    machine = described(host(), given)
    assert 0.3 < machine.clock < 8
    assert cost_model(machine).far_byte == given["costs"]["far_byte"]


def test_what_was_swept_on_a_kind_of_cores_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A description goes before the kind, and a rate of reads alone is only a bound."""
    here = replace(host(), measured=(("far_bytes", 20.0),))
    monkeypatch.setattr("tilewright.targets.cpu.machine.host", lambda: here)
    given = tomllib.loads(calibrate.description(2))
    assert "second_bytes" in given["costs"] and "far_bytes" not in given["costs"]
    costs = cost_model(described(here, given))
    assert (costs.far_bytes, costs.far_byte) == (20, cost_model(here).far_byte)


def test_what_is_made_from_a_swept_constant_is_not_written() -> None:
    """Kernels were timed with its default beside the swept one."""
    found = {"far_bytes": 28.0, "far_byte": 1 / 84, "second_bytes": 63.0}
    assert calibrate.without_swept(found, {}) == found
    left = calibrate.without_swept(found, {"far_bytes": 20.0})
    assert left == {"second_bytes": 63.0}
    left = calibrate.without_swept(found, {"second_bytes": 32.0})
    assert set(left) == {"far_bytes", "far_byte"}


def test_memory_further_away_is_slower() -> None:
    p = native_loops.loops()
    near, far = host().l1 // 2, 4 * host().l2
    assert native_loops.read_rate(p, near) > native_loops.read_rate(p, far)


def test_the_clock_is_that_right_after_vector_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A core whose clock falls from 4 to 1 cycles a nanosecond under vectors, until they end."""
    now, slow = [0.0], [False]

    def spin(count: int, out: int) -> None:
        slow[0] = True

    def chain(count: int, *values: int) -> int:
        now[0] += 2 * native_loops.PAIRS * count / (1e9 if slow[0] else 4e9)
        slow[0] = False
        return 0

    monkeypatch.setattr(native_loops.time, "perf_counter", lambda: now[0])
    p = replace(native_loops.loops(), spin=spin, chain=chain)
    assert native_loops.clock(p) == pytest.approx(1)


def test_a_latency_is_that_of_one_accumulator() -> None:
    """The step after it needs its result; those of a rate have eleven others meanwhile."""
    p = native_loops.loops()
    for loop, chains in ((p.wait, 1), (p.spin, native_loops.CHAINS)):
        out = np.zeros(native_loops.CHAINS * p.lanes, np.float32)
        loop(3, out.ctypes.data)
        assert out[: chains * p.lanes] == pytest.approx(3)
        assert not out[chains * p.lanes :].any()
    assert native_loops.multiply_latency(p) > 0


def test_data_begins_with_a_page() -> None:
    for size in (1, 4096, 100_000):
        data = native_loops._aligned(size)
        assert data.size == size and not data.ctypes.data % native_loops.PAGE


def test_threads_pay_from_the_least_work_on_from_which_they_always_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alone: 1 ms per unit of side; two threads: always 2 ms, and once a slow round."""
    monkeypatch.setattr(calibrate, "SIZES", (1, 3, 4, 5, 6))
    slow = {4}

    def timed(run: Callable[[], float]) -> float:
        return run()

    def product(side: int, threads: int, machine: object = None) -> Callable[[], float]:
        alone = 0.001 * side if side != 2 else 0.0
        together = 0.1 if side in slow else 0.002
        return lambda: alone if threads == 1 else together

    monkeypatch.setattr(calibrate, "best", timed)
    monkeypatch.setattr(calibrate, "product", product)
    assert calibrate.break_even(2) == pytest.approx(5e6)
    slow.add(6)
    assert calibrate.break_even(2) is None
