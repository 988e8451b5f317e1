"""Side-by-side timing: statistics, failing engines, and a null test of an engine with itself."""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.waiting import until
from tilewright.base.errors import InputError
from tilewright.cli import engines, rounds, worker
from tilewright.cli.rounds import RoundTable, TimingJob
from tilewright.driver import left_work
from tilewright.runtime import bundle

pytest.importorskip("onnxruntime")


def row(times: dict[str, list[float]]) -> RoundTable:
    return RoundTable("n", 1, list(times), times)


@pytest.fixture
def small(perceptron, tmp_path) -> TimingJob:
    """A small model and its inputs, quick to load in a process of its own."""
    x = np.random.default_rng(0).standard_normal((2, 8), dtype=np.float32)
    np.savez(tmp_path / "small.npz", **{"in.x": x})
    return TimingJob("small", perceptron, tmp_path / "small.npz", 1)


def test_speed_is_the_median_of_the_rounds_ratios():
    r = row({"ours": [1.0, 2.0, 4.0], "peer": [2.0, 2.0, 2.0]})
    assert r.ratios("peer") == [2.0, 1.0, 0.5]
    assert r.speed("peer") == 1.0
    assert row({"peer": [1.0]}).speed("absent") is None


def test_of_several_callers_the_speed_is_that_of_their_rates():
    r = row({"ours": [1.0, 1.0], "peer": [9.0, 9.0]})
    r.callers, r.rates = 2, {"ours": [30.0, 20.0], "peer": [10.0, 10.0]}
    assert r.ratios("peer") == [3.0, 2.0]


def test_callers_call_at_the_same_time():
    server = object.__new__(worker.Server)
    running, most = 0, 0
    counting = threading.Lock()

    def run(feeds):
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with counting:
            running -= 1
        return []

    server.run, server.feeds = run, {}
    start = time.perf_counter()
    found = server.together(seconds=0.2, callers=4)
    elapsed = time.perf_counter() - start
    assert most == 4
    # The calls of all four, over a time that is at least what was asked for.
    assert found["calls"] / elapsed < found["rate"] <= found["calls"] / 0.2
    assert found["ms"] >= 5 and found["ms"] <= found["p95"] <= found["p99"]
    assert found["calls"] >= 4 * worker.FEWEST


def test_a_caller_that_fails_is_an_error():
    server = object.__new__(worker.Server)
    left = list(range(5))

    def run(feeds):
        if not left:
            raise ValueError("the engine failed")
        left.pop()

    server.run, server.feeds = run, {}
    with pytest.raises(ValueError, match="the engine failed"):
        server.together(seconds=0.01, callers=2)


def test_callers_have_processors_as_far_as_there_are_some(small):
    here = len(os.sched_getaffinity(0))
    assert len(replace(small, callers=10000).cpus) == here
    assert len(small.cpus) == 1
    with pytest.raises(InputError, match="10,000 threads requested"):
        _ = replace(small, threads=10000, callers=2).cpus


def test_difference_is_relative_to_the_peak():
    assert rounds.difference([np.array([1.0, 9.0])], [np.array([1.0, 10.0])]) == 0.1
    assert rounds.difference([np.array([np.inf])], [np.array([np.inf])]) == 0.0
    assert (
        rounds.difference([np.array([np.inf, 2.0])], [np.array([np.inf, 1.0])]) == 1.0
    )
    assert rounds.difference([np.empty((0, 2))], [np.empty((0, 2))]) == 0.0
    assert math.isnan(rounds.difference([np.array([np.nan, 1])], [np.array([1.0, 1])]))
    with pytest.raises(ValueError, match="output 0 has shape"):
        rounds.difference([np.zeros(2)], [np.zeros(3)])
    with pytest.raises(ValueError, match="1 output, expected 2"):
        rounds.difference([np.zeros(2)], [np.zeros(2)] * 2)


def test_labels_number_an_engine_given_twice():
    assert rounds.labels(["a", "b", "a"]) == ["a", "b", "a#3"]


def test_more_threads_than_processors_is_refused():
    with pytest.raises(InputError, match="10,000 threads requested"):
        rounds.choose_cpus(10000)


def test_null_test_of_an_engine_with_itself(small):
    found = rounds.measure(small, ["onnxruntime"] * 2, rounds=2, seconds=0.01)
    assert not found.failed
    assert [len(t) for t in found.times.values()] == [2, 2]
    assert found.error == {"onnxruntime": 0.0}
    ours, theirs = found.times.values()
    assert found.speed("onnxruntime#2") == np.median(np.divide(theirs, ours)) > 0


def test_options_reach_the_engine_that_they_are_for(small):
    """A processor that there is not is found out when the model is compiled, in its process."""
    asked = replace(small, options={"tilewright": {"mcpu": "abacus"}})
    found = rounds.measure(asked, ["tilewright", "onnxruntime"], rounds=1, seconds=0.01)
    assert "abacus" in found.failed["tilewright"] and "onnxruntime" in found.times


def test_failing_engine_is_noted_and_the_peer_is_timed(small, tmp_path: Path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    found = rounds.measure(
        replace(small, model=broken), ["onnxruntime"], rounds=1, seconds=0.01
    )
    assert found.times == {} and "INVALID_PROTOBUF" in found.failed["onnxruntime"]
    found = rounds.measure(small, ["absent", "onnxruntime"], 1, 0.01)
    assert "absent" in found.failed and len(found.times["onnxruntime"]) == 1


def test_reference_with_other_numbers_shows(small):
    wrong = [np.full((2, 4), 1e6)]
    found = rounds.measure(small, ["onnxruntime"], 1, 0.01, wrong)
    assert found.error["onnxruntime"] > 0.9


def test_a_busy_machine_is_said(monkeypatch):
    monkeypatch.setattr(rounds.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert rounds.disturbance() is None
    monkeypatch.setattr(rounds.os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert "a load of 1000.0" in rounds.disturbance()


PARENT = """
import sys, time
from pathlib import Path
from tilewright.cli.rounds import EngineProcess, TimingJob

model, data = map(Path, sys.argv[1:])
worker = EngineProcess("onnxruntime", TimingJob("small", model, data, 1))
worker.ready()
print(worker.process.pid, flush=True)
time.sleep(600)
"""


def alive(process):
    """Whether a process, given by its folder, has not ended; one that nobody waits for has."""
    try:
        return "State:\tZ" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_engines_end_with_a_parent_that_is_killed(small):
    """They are stopped between their rounds: nothing of their own could end them."""
    arguments = [sys.executable, "-c", PARENT, small.model, small.inputs]
    parent = subprocess.Popen(
        list(map(str, arguments)), stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    engine = Path(f"/proc/{int(parent.stdout.readline())}")
    parent.kill()
    parent.communicate()
    until(lambda: not alive(engine))


def test_a_worker_waits_for_what_its_engine_left_to_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the writing of the cache, which would disturb the first rounds."""
    done: list[int] = []

    def work(pause: bundle.Pause) -> None:
        time.sleep(0.2)
        done.append(1)

    def load(path: Path, threads: int, dims: object) -> Callable[[object], list[Any]]:
        left_work.afterwards(work)
        return lambda feeds: []

    monkeypatch.setitem(engines.ENGINES, "one", load)
    np.savez(tmp_path / "in.npz")
    task = {"engine": "one", "model": "m", "threads": 1, "dims": {}, "options": {}}
    worker.Server(task | {"inputs": str(tmp_path / "in.npz")})
    assert done
