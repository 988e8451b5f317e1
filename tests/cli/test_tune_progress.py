"""The live table of `tilewright tune`: each kernel's share of the roofline."""

from dataclasses import replace
from math import inf

import pytest

from tilewright.cli import roofline, tune
from tilewright.cli.options import CommandOptions
from tilewright.cli.roofline import MachinePeaks
from tilewright.cli.tune_progress import _Live

PEAKS = MachinePeaks(gflops=100.0, gbs=10.0, cache=1 << 20)


@pytest.mark.parametrize(
    ("operations", "moved", "share"),
    [
        (25_000_000, 1 << 20, 0.25),  # 0.25 ms of 1 ms; its data stay in the cache
        (25_000_000, 5_000_000, 0.5),  # 0.5 ms by memory
        (25_000_000, 2_000_000, 0.25),  # 0.2 ms by memory: arithmetic decides
        (0, 5_000_000, 0.5),
    ],
)
def test_the_share_is_of_the_tighter_bound(operations, moved, share):
    assert PEAKS.share(operations, moved, 1e-3) == pytest.approx(share)


def test_without_a_time_there_is_no_share():
    assert PEAKS.share(1, 1, 0.0) is None


def cells(peaks: MachinePeaks | None, seconds: float) -> list[str]:
    live = _Live(None)
    live.peaks = peaks
    live.kernels["k"] = {
        "task": "k",
        "trials": 3,
        "seconds": seconds,
        "gain": 1.5,
        "operations": 25_000_000,
        "bytes_moved": 5_000_000,
        "expected_gain": 0.1,
    }
    return [
        str(c.header) + "=" + str(next(iter(c.cells))) for c in live.table().columns
    ]


def test_the_table_has_a_column_for_it():
    assert "roofline=50%" in cells(PEAKS, 1e-3)
    assert "roofline=-" in cells(PEAKS, inf)
    assert "roofline=-" in cells(None, 1e-3)


def test_peaks_of_this_machine_are_not_those_of_a_fleet_or_another_target(monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda threads: PEAKS)
    options = CommandOptions(threads=1)
    assert tune._peaks(None, options) is PEAKS
    assert tune._peaks("local:2", options) is None
    assert tune._peaks(None, replace(options, target="cuda")) is None
