"""The profiler: rows per kernel, a table, JSON and a Chrome trace that agree with one another."""

import json

import numpy as np
import pytest

from tests.runtime import native
from tilewright.base.errors import InputError
from tilewright.runtime.executable import Executable
from tilewright.runtime.profile import _Watch

X = np.linspace(-1, 1, 30_000).astype(np.float32)


@pytest.fixture(scope="module")
def profile():
    return Executable(native.model(X.size), threads=1).profile(
        X, repeat=30, peak_gflops=1000, peak_gbs=100
    )


def test_rows(profile):
    assert [(r.name, r.nodes) for r in profile.rows] == [
        ("double", ("mul_1",)),
        ("add", ("add_1", "gather_2")),
    ]
    assert all(r.calls == 30 and r.seconds > 0 for r in profile.rows)
    assert sum(r.share for r in profile.rows) == pytest.approx(1)
    # The kernels are nearly all of such a call; the clocks must agree.
    assert 0.3 < sum(r.seconds for r in profile.rows) / profile.total < 1.1
    first = profile.rows[0]
    assert first.gflops == pytest.approx(100 / first.seconds / 1e9)
    assert first.gbs == pytest.approx(800 / first.seconds / 1e9)
    assert first.peak_share == pytest.approx(
        max(100 / 1e12, 800 / 1e11) / first.seconds
    )


@pytest.mark.parametrize("runs", [1, 2, 9, 30])
def test_a_pause_between_the_clocks_does_not_count(runs):
    """Each run begins and ends 5 ns before its stamps, 2 ticks a nanosecond; one begins late."""
    watch = _Watch(None)
    for n in range(runs):
        watch.begin()
        watch.edges += [(100 * n - 5, 200 * n), (100 * n + 45, 200 * n + 100)]
    assert watch.seconds_per_tick() == pytest.approx(0.5e-9)
    watch.edges[0] = (-1_000_000, 0)
    if runs > 2:
        assert watch.seconds_per_tick() == pytest.approx(0.5e-9)


def test_text_json_and_trace(profile):
    lines = str(profile).splitlines()
    times = ["kernel", "us", "share", "GFLOP/s", "GB/s", "of", "peak"]
    assert lines[0].split() == [*times, "fma", "other", "loads", "stores", "spills"]
    assert {line.split()[0] for line in lines[1:]} == {"double", "add", "total"}
    data = json.loads(profile.to_json())
    assert data["rows"][1]["mix"]["instructions"] > 0
    assert data["rows"][1]["nodes"] == ["add_1", "gather_2"] and data["repeat"] == 30
    trace = json.loads(json.dumps(profile.chrome_trace()))
    kernels = [e for e in trace["traceEvents"] if e.get("cat") == "Kernel"]
    assert [e["name"] for e in kernels] == ["double", "add"]
    assert kernels[1]["ts"] == pytest.approx(kernels[0]["ts"] + kernels[0]["dur"])
    assert all(
        e["ph"] in "XM" and isinstance(e["pid"], int) for e in trace["traceEvents"]
    )


def test_calls_after_it_are_not_timed():
    exe = Executable(native.model(), threads=1)
    x = X[:100].copy()
    profile = exe.profile(x=x, repeat=1)
    assert "of peak" not in str(profile)
    np.testing.assert_array_equal(exe(x), native.expected(x))
    with pytest.raises(InputError, match="repeat=0"):
        exe.profile(x, repeat=0)
    with pytest.raises(InputError, match="missing inputs"):
        exe.profile()
