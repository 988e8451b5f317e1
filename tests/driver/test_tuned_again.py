"""A model is tuned again: what was chosen before gives way to what is measured now."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.driver import tuning
from tilewright.driver.in_network import NetworkTimes
from tilewright.driver.tasks import tasks
from tilewright.driver.tuning import How
from tilewright.tune.base import Candidate, Measurement, Status, Task, Trial
from tilewright.tune.measure.options import Timing
from tilewright.tune.records.database import Records
from tilewright.tune.records.published import read
from tilewright.tune.tuner import TaskOutcome, Tuning

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
o (float[16, 32] x) => (float[16, 16] y) { y = MatMul(x, w) }"""
FEW = How("random", "analytic", timing=Timing(round_seconds=1e-4, seconds=0.01))


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    w = np.random.default_rng(0).standard_normal((32, 16)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return made


def chosen_before(task: Task, records: Path, candidate: Candidate) -> None:
    """Ten times as fast as the default, as some older compiler had it."""
    with Records(records) as kept:
        run = kept.begin("model", compiler="older")
        assert kept.choose(run, task.key, task.name, candidate, 1e-6, 10e-6)


def tuned(model: onnx.ModelProto, records: Path) -> None:
    tw.tune(model, trials=2, threads=1, how=FEW, records=records)


def used(records: Path) -> list[str]:
    found = read(records)
    assert found is not None
    return [c.candidate for c in found.choices.values()]


def no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "improved", lambda outcomes: [])


def test_a_schedule_that_is_not_possible_any_more_is_given_up(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gain(monkeypatch)
    records = tmp_path / "records.sqlite"
    [task] = tasks(model, threads=1)
    old = task.space.default()
    chosen_before(task, records, Candidate(old.sketch, {**old.values, "gone": 1}))
    with pytest.warns(tw.TilewrightWarning, match="Tune the model again"):
        tw.compile(model, threads=1, records=records, cache=False)
    tuned(model, records)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tw.compile(model, threads=1, records=records, cache=False)
    assert used(records) == []


@pytest.mark.representatives("0.5")
@pytest.mark.parametrize(
    "seconds", [0.5, pytest.param(2.0, marks=pytest.mark.slow), float("inf")]
)
def test_what_was_chosen_is_measured_again_and_kept_if_it_is_faster(
    model: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:
    """seconds: of it, where the default takes 1."""
    no_gain(monkeypatch)
    records = tmp_path / "records.sqlite"
    [task] = tasks(model, threads=1)
    default, random = task.space.default(), Random(0)
    other = next(c for _ in range(99) if (c := task.space.sample(random)) != default)
    chosen_before(task, records, other)
    measured = []

    def finished(self: Tuning, candidate: Candidate, found: Measurement) -> Trial:
        measured.append(candidate)
        taken = 1.0 if candidate == default else seconds
        ok = Measurement(Status.OK, (taken,))
        failed = Measurement(Status.WRONG)
        return Trial(candidate, ok if taken < float("inf") else failed)

    monkeypatch.setattr(Tuning, "_finished", finished)
    monkeypatch.setattr(Tuning, "settle", lambda self: None)
    tuned(model, records)
    assert measured == [default, other]
    assert used(records) == ([other.key] if seconds < 1 else [])


def test_the_latest_choice_is_used_whatever_an_earlier_one_gained(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "records.sqlite"
    [task] = tasks(model, threads=1)
    first, random = task.space.default(), Random(0)
    better = next(c for _ in range(99) if (c := task.space.sample(random)) != first)
    chosen_before(task, records, first)

    def improved(outcomes: list[TaskOutcome]) -> list[TaskOutcome]:
        fast = Trial(better, Measurement(Status.OK, (2e-6,)))
        slow = Trial(first, Measurement(Status.OK, (3e-6,)))
        return [replace(o, best=fast, default=slow) for o in outcomes]

    monkeypatch.setattr(tuning, "improved", improved)
    monkeypatch.setattr(tuning, "kept", lambda o, *_: (o, NetworkTimes(2.0, 1.0, {})))
    tuned(model, records)
    assert used(records) == [better.key]
