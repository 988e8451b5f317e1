"""Kernels beside the measured peaks of a core."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
from benchmarks import kernels, peak


def test_bandwidth_is_that_of_the_level_that_holds_the_data():
    peaks = peak.Peaks(100.0, ((1024.0, 50.0), (math.inf, 5.0)))
    assert [peaks.bandwidth(size) for size in (1, 1024, 1025, 1 << 40)] == [50.0, 50.0, 5.0, 5.0]


def test_the_peaks_of_this_core():
    found = peak.measure()
    sizes = [size for size, _ in found.gbs]
    assert sizes == sorted(sizes) and sizes[-1] == math.inf
    # Any core made in this century does more than one operation per nanosecond.
    assert 1 < found.gflops < 1000
    assert all(0.1 < rate < 10_000 for _, rate in found.gbs)


def test_a_kernel_falls_short_where_it_reaches_neither_bar():
    assert not kernels.falls_short({"fma": 0.81, "stream": 0.1})
    assert not kernels.falls_short({"fma": 0.1, "stream": 0.81})
    assert kernels.falls_short({"fma": 0.79, "stream": 0.79})


def test_kernels_over_three_percent_are_listed(tmp_path: Path):
    name = "int8_conv1x1_256x56_64"
    arguments = [name, "--dir", str(tmp_path), "--repeat", "2", "--json"]
    result = CliRunner().invoke(kernels.main, arguments)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)["rows"]
    assert rows and all(row["network"] == name and row["share"] > kernels.SHARE for row in rows)
    assert sum(row["share"] for row in rows) <= 1.001
    assert CliRunner().invoke(kernels.main, ["nothing"]).exit_code == 2
