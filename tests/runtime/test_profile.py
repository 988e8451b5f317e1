"""The profiler: rows per kernel, a table, JSON and a Chrome trace that agree with one another."""

import json

import numpy as np
import pytest

from tests.runtime import native
from tests.waiting import until
from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.driver import compile
from tilewright.frontends.onnx.author import Author
from tilewright.runtime import abi
from tilewright.runtime.executable import Executable
from tilewright.runtime.profile import _middle, _Watch
from tilewright.runtime.threads import available
from tilewright.runtime.timeline import KernelSpan, Log, lanes, owners

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
    rows, note = lines[1:-1], lines[-1]
    assert [line.split()[0] for line in rows[-2:]] == ["between", "total"]
    assert {line.split()[0] for line in rows[:-2]} == {"double", "add"}
    assert note.startswith("30 runs: p50 ") and "p99" in note
    data = json.loads(profile.to_json())
    assert data["rows"][1]["mix"]["instructions"] > 0
    assert data["rows"][1]["nodes"] == ["add_1", "gather_2"] and data["repeat"] == 30
    trace = json.loads(json.dumps(profile.chrome_trace()))
    kernels = [e for e in trace["traceEvents"] if e.get("cat") == "Kernel"]
    assert [e["name"] for e in kernels] == ["double", "add"]
    assert kernels[1]["ts"] >= kernels[0]["ts"] + kernels[0]["dur"] - 1e-6
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


def test_rows_and_the_time_between_them_add_up(profile):
    shown = profile.between + sum(r.seconds for r in profile.rows)
    assert shown == pytest.approx(profile.total) and profile.between > 0
    shares = sum(r.share for r in profile.rows) + profile.between / profile.total
    assert shares == pytest.approx(1)
    data = json.loads(profile.to_json())
    assert data["between"] == pytest.approx(profile.between)
    assert min(profile.runs) <= data["percentiles"]["p50"] <= data["percentiles"]["p99"]
    assert data["percentiles"]["p99"] <= max(profile.runs) and len(profile.runs) == 30


@pytest.mark.parametrize(
    ("times", "kept"),
    [([5.0], [0]), ([9.0, 1.0], [1, 0]), ([3.0, 9.0, 1.0], [0]),
     ([1.0, 99.0, 2.0, 3.0], [2, 3]), ([8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0], [5, 7, 6, 4])],
)  # fmt: skip
def test_runs_that_were_disturbed_do_not_count(times, kept):
    assert _middle(times) == kept


def test_a_log_that_is_full_counts_what_it_loses():
    log = Log(room=2)
    assert log.taken() == ([], 0)
    log._words[:8] = [3, 2, 41, 10, 20, 42, 11, 21]
    assert log.taken() == ([(41, 10, 20), (42, 11, 21)], 1)
    assert log.taken() == ([], 0)


def test_a_part_is_of_the_kernel_during_which_it_began():
    spans = [KernelSpan(0, 0.0, 1.0), KernelSpan(1, 1.5, 1.0)]
    parts = [(1, 1.6, 2.0), (0, 0.1, 0.9), (1, 0.2, 1.0)]
    assert [(s.row, s.thread) for s in owners(spans, parts)] == [
        (0, 0),
        (0, 1),
        (1, 1),
    ]
    assert lanes([7, 9, 7], 9) == {9: 0, 7: 1}


def test_parts_that_follow_at_once_are_one_span():
    """Of one lane and one kernel only, and not after a pause."""
    spans = [KernelSpan(0, 0.0, 1.0), KernelSpan(1, 1.0, 1.0)]
    parts = [(0, 0.1, 0.5), (0, 0.5, 0.6), (1, 0.6, 0.7), (0, 0.9, 1.0), (0, 1.0, 1.5)]
    found = [(s.row, s.start, s.end, s.thread) for s in owners(spans, parts)]
    assert found == [
        (0, 0.1, 0.6, 0),
        (0, 0.6, 0.7, 1),
        (0, 0.9, 1.0, 0),
        (1, 1.0, 1.5, 0),
    ]


@pytest.mark.skipif(
    available() < 2, reason="a pool has its first worker on two processors"
)
def test_a_trace_is_one_real_run_with_a_lane_for_each_thread():
    """Of a product on two threads: both have shares, inside of the kernel and of the run."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((256, 256), dtype=np.float32)
    author = Author("product")
    x = author.input("x", float32, (256, 256))
    y = author.node("MatMul", [x, author.weight("w", weight)], "y")
    author.output(author.node("Softmax", [y], "z"), float32, (256, 256))
    exe = compile(author.model(), threads=2)
    given = rng.standard_normal((256, 256), dtype=np.float32)
    before = exe(given)
    lines = []

    def both() -> bool:
        """On a busy machine, the second thread may come when all shares are taken."""
        lines.append(exe.profile(given, repeat=1).timeline)
        return lines[-1].threads == (0, 1)

    until(both)
    line = lines[-1]
    kernels = {s.row: s for s in line.spans if s.thread is None}
    assert sorted(kernels) == [0, 1] and line.lost == 0
    assert 0 <= kernels[0].start < kernels[0].end <= kernels[1].start
    assert kernels[1].end <= line.seconds
    slack = 20e-6  # between the stamps of a kernel and those of its shares
    for share in (s for s in line.spans if s.thread is not None):
        whole = kernels[share.row]
        assert whole.start - slack <= share.start <= share.end <= whole.end + slack
    # What is not profiled is not logged.
    np.testing.assert_array_equal(exe(given), before)
    assert all(frame.context[abi.CTX_LOG] == 0 for frame in exe._frames)


@pytest.mark.parametrize("seconds", ["1", -1, 0, float("nan"), True])
def test_a_time_to_stay_awake_is_checked(seconds):
    with pytest.raises(InputError, match="seconds="):
        Executable(native.model(X.size), threads=1).stay_awake(seconds)
