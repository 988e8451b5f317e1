"""The measurement of threads: it measures what it says, and says what is missed."""

from __future__ import annotations

import pytest

from benchmarks import compile_time, footprint
from benchmarks.fork_join import Regions, after_a_pause, missed, together


def test_regions_with_work_take_longer_than_empty_ones() -> None:
    alone = Regions(1)
    empty, busy = (min(alone.seconds(n, 1) for _ in range(5)) for n in (0, 2000))
    assert 0 < empty < busy


def test_a_sleeping_worker_joins() -> None:
    team, given_up = Regions(2), Regions(1).wake()
    assert 0 < min(team.wake() for _ in range(20)) < given_up


@pytest.mark.slow
def test_two_models_at_once_both_run() -> None:
    assert together(2, 0.05, 1) > 0


@pytest.mark.slow
def test_a_call_after_a_pause_is_compared_with_one_among_many() -> None:
    assert after_a_pause(2, 3) > 0


def test_what_is_missed_is_said() -> None:
    good = {"fork_join_seconds": 5e-7, "wake_seconds": 5e-5, "together": 0.95}
    assert not missed(good)
    assert (
        len(missed({"fork_join_seconds": 2e-6, "wake_seconds": 2e-4, "together": 0.5}))
        == 3
    )


def test_the_smaller_peer_is_the_bar_of_memory() -> None:
    def engine(peak: float) -> dict[str, float]:
        return {
            "peak_megabytes": peak,
            "load_seconds": 0.1,
            "read_seconds": 0,
            "llvm_loaded": 0,
        }

    row = {"network": "n", "tilewright": engine(90), "onnxruntime": engine(100)}
    assert not footprint.missed(row | {"openvino": engine(95)})
    assert footprint.missed(row | {"openvino": engine(80)}) == [
        "n: peak 90 MB, openvino 80 MB"
    ]
    assert footprint.missed(row | {"openvino": "broken"}) == ["n: openvino: broken"]
    slow = engine(90) | {"load_seconds": 0.9, "llvm_loaded": 1}
    assert (
        len(footprint.missed(row | {"openvino": engine(95), "tilewright": slow})) == 2
    )


def test_a_network_without_a_bar_of_its_own_has_that_of_the_cache() -> None:
    row = {"network": "unknown", "cold_seconds": 99.0, "cached_seconds": 0.1}
    assert not compile_time.missed(row)
    assert len(compile_time.missed(row | {"cached_seconds": 0.6})) == 1
    assert (
        len(compile_time.missed(row | {"network": "lenet", "cached_seconds": 0.6})) == 2
    )


def test_a_row_is_a_column_with_what_was_asked_for() -> None:
    row = {
        "cold_seconds": 1.0,
        "cold_processor_seconds": 1.5,
        "cached_seconds": 0.1,
        "artifact_megabytes": 3.0,
        "model_megabytes": 2.0,
        "peak_megabytes": 100.0,
    }
    plain = compile_time.shown(row)
    assert plain["times the model's file"] == "1.50"
    asked = row | {
        "peers": {"openvino": 0.25},
        "stages": {"kernels": 0.5},
        "tiers": {"ready": 2},
    }
    assert compile_time.shown(asked) == plain | {
        "openvino": "0.25",
        "kernels": "0.50",
        "tiered: ready": "2.000",
    }
    view = compile_time.table({"one": plain, "two": plain})
    assert [c.header for c in view.columns] == ["", "one", "two"]
    assert view.row_count == len(plain)
