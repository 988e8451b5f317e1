"""`tw.tune`: kernels are searched, what is better in the model is chosen, compile uses it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.driver import tuning, tuning_session
from tilewright.driver.in_network import NetworkTimes
from tilewright.driver.options import Options
from tilewright.driver.tasks import tasks
from tilewright.driver.tuning import How
from tilewright.tune.base import Measurement, Status, Trial
from tilewright.tune.measure.options import Timing
from tilewright.tune.records.columns import RecordFilter
from tilewright.tune.records.database import Records
from tilewright.tune.tuner import TaskOutcome

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
o (float[32, 48] x) => (float[32, 16] y) {
  a = MatMul(x, w)
  b = Relu(a)
  c = MatMul(b, v)
  y = Softmax(c)
}"""
QUICK = Timing(round_seconds=1e-4, seconds=0.01)
FEW = How("random", "analytic", timing=QUICK)


@pytest.fixture
def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (48, 64), "v": (64, 16)}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "records.sqlite"


def tuned(model: onnx.ModelProto, records: Path, **more: object) -> tw.tune.Tuned:
    given = {"trials": 8, "threads": 1, "how": FEW, "records": records, **more}
    return tw.tune(model, **given)


def test_a_model_is_tuned(model: onnx.ModelProto, records: Path) -> None:
    with events.record() as log:
        found = tuned(model, records, trials=4)
    assert found.trials == 4
    assert found.ending == "trials"
    assert found.gain >= 1.0
    assert len([e for e in log if e.kind == "trial"]) == 4
    with Records(records, write=False) as read:
        rows = read.records()
    # Those that compared the best with the default again are of a run of their own.
    searched = [r for r in rows if r.run.settings != "final"]
    again = {r.run.settings for r in rows if r.trial.strategy == "final"}
    assert again <= {"final"}
    assert len(searched) == 4
    assert {r.task for r in searched} == {k.name for k in found.kernels}
    assert "trials in" in str(found)
    assert found.to_dict()["kernels"][0]["values"]["sketch"]


@pytest.mark.parametrize(
    ("trials", "seconds", "short"),
    [
        (255, None, True),
        (256, None, False),
        (None, 59.9, True),
        (None, 60.0, False),
        (256, 59.9, True),
        (255, 600.0, True),
        (None, None, False),
    ],
)
def test_a_short_run_imports_no_lightgbm(
    monkeypatch: pytest.MonkeyPatch,
    trials: int | None,
    seconds: float | None,
    short: bool,
) -> None:
    """Whether it is installed or not; a model that is asked for by name is taken."""
    budget = tuning_session.budget_of(trials, seconds, 0.0)
    monkeypatch.setattr(tuning_session, "find_spec", lambda name: name)

    def model(how: How) -> str:
        path = Path("records.sqlite")
        return tuning_session.Session([], "", path, how, Options(), budget).cost_model()

    assert model(How()) == ("gaussian-process" if short else "trees-pretrained")
    assert model(How(cost_model="ansor")) == "ansor"


def test_what_is_chosen_is_used_and_changes_no_result(
    model: onnx.ModelProto, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every schedule that is not the default one is taken as the better one here."""
    monkeypatch.setattr(tuning, "improved", lambda outcomes: [*map(_another, outcomes)])
    monkeypatch.setattr(
        tuning, "kept", lambda found, *_: (found, NetworkTimes(2.0, 1.0, {}))
    )
    found = tuned(model, records, trials=2)
    assert found.gain == 2.0
    x = np.random.default_rng(1).standard_normal((32, 48)).astype(np.float32)
    with events.record() as log:
        exe = tw.compile(model, threads=1, records=records, cache=False)
    used = [e.fields["kernel"] for e in log if e.kind == "record-used"]
    assert used
    plain = tw.compile(model, threads=1, records=False)
    np.testing.assert_allclose(exe(x), plain(x), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_final_comparison_is_recorded_too(
    model: onnx.ModelProto, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskOutcome, "gain", property(lambda o: 2.0))
    tuned(model, records, trials=12)
    with Records(records, write=False) as read:
        rows = read.records()
        final = [r for r in rows if r.trial.strategy == "final"]
        searched = {r.trial.candidate.key for r in rows if r not in final}
    assert final
    assert {r.trial.candidate.key for r in final} <= searched


def _another(o: TaskOutcome) -> TaskOutcome:
    """The outcome, as if a schedule other than the default had been the faster one."""
    import dataclasses
    import random

    default = o.task.space.default()
    r = random.Random(0)
    other = next(
        c
        for c in (o.task.space.neighbor(default, r) for _ in range(99))
        if c != default
    )
    best = Trial(other, Measurement(Status.OK, (1e-6,)))
    slow = Trial(default, Measurement(Status.OK, (2e-6,)))
    return dataclasses.replace(o, best=best, default=slow, confidence=1.0)


@pytest.mark.slow
def test_a_run_that_ended_early_goes_on(model: onnx.ModelProto, records: Path) -> None:
    """An error in the midst of it leaves the run open; its trials are not measured again."""
    count = 0

    def stop() -> bool:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        tuned(model, records, until=stop)
    with Records(records, write=False) as read:
        before = {r.trial.candidate.key for r in read.records()}
    assert before
    # The process that made the run lives: another run of it is a new one, which knows these trials.
    with events.record() as log:
        found = tuned(model, records)
    assert found.trials == 8
    assert not [e for e in log if e.kind == "tune-resumed"]


def test_ctrl_c_keeps_the_best(model: onnx.ModelProto, records: Path) -> None:
    found = tuned(model, records, until=lambda: True)
    assert (found.ending, found.trials) == ("interrupted", 0)


def test_only_some_kernels(model: onnx.ModelProto, records: Path) -> None:
    names = [task.name for task in tasks(model, threads=1)]
    assert len(names) > 1
    found = tuned(model, records, kernels=[names[1]], trials=2)
    assert [k.name for k in found.kernels] == [names[1]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trials": 0}, "trials=0"),
        ({"seconds": -1.0, "trials": None}, r"seconds=-1\.0"),
        ({"seconds": "5"}, "seconds='5'"),
        ({"kernels": ["nothing"]}, "there is no kernel 'nothing'"),
        ({"target": "gpu9"}, "gpu9"),
    ],
)
def test_what_is_refused(
    model: onnx.ModelProto, records: Path, given: dict[str, object], message: str
) -> None:
    with pytest.raises(Exception, match=message) as found:
        tuned(model, records, **given)
    assert isinstance(found.value, tw.TilewrightError)


@pytest.mark.parametrize(
    "given",
    [
        {"method": "best"},
        {"cost_model": "oracle"},
        {"fleet": "local:some"},
        {"fleet": "local:0"},
    ],
)
def test_names_that_there_are_not(given: dict[str, str]) -> None:
    with pytest.raises(InputError, match=next(iter(given))):
        How(**given)  # type: ignore[arg-type]


def test_without_records_nothing_is_tuned(model: onnx.ModelProto) -> None:
    with pytest.raises(InputError, match="records=False"):
        tw.tune(model, trials=1, threads=1, how=FEW, records=False)  # type: ignore[arg-type]


def test_the_folder_of_a_mistyped_path_is_not_made(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    place = tmp_path / "mistyped" / "mine.sqlite"
    with pytest.raises(InputError, match=r"there is no folder .*mistyped"):
        tw.tune(model, trials=1, threads=1, how=FEW, records=place)
    assert not place.parent.exists()


def test_a_name_that_no_file_can_have(model: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="NUL character"):
        tw.tune(model, trials=1, threads=1, how=FEW, records=tmp_path / "a\0b")


def test_records_that_are_off(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_RECORDS", "off")
    with pytest.raises(InputError, match="tuning records are off"):
        tw.tune(model, trials=1)


def test_wrong_inputs_are_said_before_the_search(
    model: onnx.ModelProto, records: Path
) -> None:
    with pytest.raises(InputError, match="'z'"):
        tuned(model, records, feeds={"z": np.zeros((32, 48), np.float32)})
    assert not records.exists()


def test_spaces_of_one_s_own() -> None:
    tune = tw.tune
    space = tune.Space(
        tune.Parameter("tile", tune.Divisors(64)),
        tune.Parameter(
            "unroll", tune.Set(1, 2, 4), lambda unroll, tile: unroll <= tile
        ),
    )
    found = tune.minimize(lambda c: abs(c["tile"] - 16) + c["unroll"], space)
    assert dict(found.state) == {"tile": 16, "unroll": 1}
    assert found.exact


def test_without_lightgbm_it_says_so(
    model: onnx.ModelProto, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_session, "find_spec", lambda name: None)
    monkeypatch.setattr(tuning_session, "SHORT_TRIALS", 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tuned(model, records, trials=1, how=How("random"))
    assert any("tilewright[tune]" in str(w.message) for w in said)
    with Records(records, write=False) as read:
        assert len(read.records(RecordFilter())) == 1


def test_the_package_of_the_same_name_is_found_by_it() -> None:
    import tilewright.tune.records.database as database

    assert database.Records is Records
    assert tw.tune.records.database is database
    with pytest.raises(AttributeError, match=r"tilewright\.tune has no 'nothing'"):
        _ = tw.tune.nothing
