"""The live table of `tilewright tune`: each kernel's share of the roofline."""

from dataclasses import replace
from functools import partial
from itertools import cycle
from math import inf
from typing import Any

import pytest

from tilewright.base.store import FileStore
from tilewright.cli import roofline, tune
from tilewright.cli.options import CommandOptions
from tilewright.cli.roofline import MachinePeaks
from tilewright.cli.tune_progress import _Live
from tilewright.report import tuning as report

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
        "calls": 1,
        "bound": "loads",
    }
    return [
        str(c.header) + "=" + str(next(iter(c.cells))) for c in live.table().columns
    ]


def test_the_table_has_a_column_for_it():
    assert "roofline=50%" in cells(PEAKS, 1e-3)
    assert "roofline=-" in cells(PEAKS, inf)
    assert "roofline=-" in cells(None, 1e-3)


def test_the_table_says_what_bounds_a_heavy_kernel_that_is_far_from_the_roofline():
    assert "bound by=loads" in cells(PEAKS, 1e-3)
    assert "bound by=" in cells(PEAKS, 0.6e-3)  # at 83%
    assert "bound by=" in cells(None, 1e-3)


def test_a_kernel_counts_by_the_time_of_all_its_calls():
    kernel = {"seconds": 1e-3, "operations": 25_000_000, "bytes_moved": 5_000_000}
    assert PEAKS.is_far(kernel, 0.03) and not PEAKS.is_far(kernel, 0.02)
    assert not PEAKS.is_far({**kernel, "seconds": inf}, 0.03)
    live = _Live(None)
    live.peaks = PEAKS
    often = {**kernel, "task": "often", "calls": 99, "trials": 1, "gain": 1.0}
    often |= {"expected_gain": 0.1, "bound": "loads"}
    live.kernels = {"rare": {**often, "task": "rare", "calls": 1}, "often": often}
    columns = {str(c.header): [*map(str, c.cells)] for c in live.table().columns}
    assert columns["kernel"] == ["often", "rare"]
    assert columns["bound by"] == ["loads", ""]


def test_the_report_says_it_too():
    kernel = {
        "kernel": "k",
        "calls": 2,
        "best_seconds": 1e-3,
        "operations": 25_000_000,
        "bytes_moved": 5_000_000,
        "bound": "loads (1.5 per arithmetic instruction)",
    }
    failed = {**kernel, "kernel": "failed", "best_seconds": inf}
    near = {**kernel, "kernel": "near", "best_seconds": 0.6e-3}
    rare = {**kernel, "kernel": "rare", "calls": 0}
    form = {**kernel, "kernel": "form", "operations": 0, "bytes_moved": 0, "calls": 999}
    found: dict[str, Any] = {"kernels": [form, kernel, failed, near, rare]}
    tune._add_shares(found, replace(PEAKS, disturbed=True))
    shown = "".join(report._bounds(found))
    assert "beside other work" in shown
    assert shown.count("loads (1.5") == 1 and "<td>50%</td><td>loads" in shown
    assert "<td>near</td><td>83%</td><td></td>" in shown
    assert "failed" not in shown
    assert "form" not in shown  # nor is its time in that of the model
    del kernel["roofline"]  # as of a fleet
    assert report._bounds({"kernels": [kernel]}) == []


def turns(monkeypatch, *seconds: float) -> None:
    """Let the turns of each measurement take these seconds."""
    monkeypatch.setattr(
        roofline, "_turn", lambda *given: partial(next, iter(cycle(seconds)))
    )
    monkeypatch.setattr(roofline.os, "getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.fixture
def store(tmp_path, monkeypatch):
    made = FileStore(tmp_path, 1 << 20)
    monkeypatch.setattr(roofline, "default_store", lambda: made)
    return made


def test_the_best_of_several_turns_counts_and_is_kept(store, monkeypatch):
    turns(monkeypatch, 1.05e-3, 1e-3, 1.05e-3)
    found = roofline.measure(1)
    assert not found.disturbed and not found.note
    assert found.gflops == pytest.approx(2e-9 * 256 * 512 * 1024 / 1e-3)
    turns(monkeypatch, 1e-9)  # would be faster, but is not measured again
    assert roofline.measure(1) == found
    assert roofline.measure(2).gflops > 1e3 * found.gflops  # other threads are


def test_disturbed_peaks_are_measured_again_and_the_best_counts(store, monkeypatch):
    turns(monkeypatch, 2e-3, 1e-3, 2e-3)
    first = roofline.measure(1)
    assert first.disturbed and "may be higher" in first.note
    turns(monkeypatch, 4e-3)
    second = roofline.measure(1)
    assert second.gflops == first.gflops and not second.disturbed


def test_peaks_of_a_busy_machine_are_disturbed_however_equal_turns_are(
    store, monkeypatch
):
    turns(monkeypatch, 1e-3)
    monkeypatch.setattr(roofline.os, "getloadavg", lambda: (2.5, 0.0, 0.0))
    assert roofline.measure(1).disturbed


def test_without_a_cache_they_are_measured_each_time(monkeypatch):
    monkeypatch.setattr(roofline, "default_store", lambda: None)
    turns(monkeypatch, 2e-3)
    slow = roofline.measure(1)
    turns(monkeypatch, 1e-3)
    assert roofline.measure(1).gflops == pytest.approx(2 * slow.gflops)


def test_peaks_of_this_machine_are_not_those_of_a_fleet_or_another_target(monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda threads: PEAKS)
    options = CommandOptions(threads=1)
    assert tune._peaks(None, options) is PEAKS
    assert tune._peaks("local:2", options) is None
    assert tune._peaks(None, replace(options, target="cuda")) is None


def test_shares_of_kernels_with_equal_names():
    """A kernel that takes little time is not explained because it has the name of a long one."""
    from math import inf

    from tilewright.cli.roofline import MachinePeaks
    from tilewright.cli.tune import _add_shares

    kernels = [
        {
            "kernel": "dense",
            "calls": 1,
            "best_seconds": seconds,
            "operations": 1,
            "bytes_moved": 1,
        }
        for seconds in (1e-6, 1e-3, inf)
    ]
    _add_shares({"kernels": kernels}, MachinePeaks(1.0, 1.0))
    assert [k["far"] for k in kernels] == [False, True, False]
    assert kernels[2]["roofline"] is None
