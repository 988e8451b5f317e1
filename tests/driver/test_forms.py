"""Forms of convolutions: measured by `tune`, recorded, used by `compile` where they belong."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import ScheduleError, TilewrightWarning
from tilewright.driver import schedules, tuning
from tilewright.driver.decision_tasks import decision_tasks
from tilewright.driver.in_network import NetworkTimes
from tilewright.driver.tasks import tasks
from tilewright.driver.tuning import How
from tilewright.runtime.bundle import load
from tilewright.runtime.executable import Executable
from tilewright.tune.base import Candidate, Measurement, Status, Task, Trial
from tilewright.tune.measure.options import Timing
from tilewright.tune.measure.reference import unpack
from tilewright.tune.records.database import Records
from tilewright.tune.records.key import Key
from tilewright.tune.space.listed import ListedSpace

rng = np.random.default_rng(0)
W = (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32)
PROCESSOR = {"mcpu": "x86-64-v3", "threads": 1}


def model(
    side: int = 16,
    *,
    stride: int = 1,
    relu: bool = False,
    constant: bool = True,
    weights: Any = W,
    layers: int = 1,
) -> bytes:
    """Convolutions of 16 channels in sequence."""
    nodes, given = [], "x"
    for n in range(layers):
        kind: Any = {"pads": [1, 1, 1, 1], "strides": [stride, stride]}
        result = f"c{n}" if relu or n < layers - 1 else "y"
        nodes.append(helper.make_node("Conv", [given, "w"], [result], **kind))
        given = result
    if relu:
        nodes.append(helper.make_node("Relu", [given], ["y"]))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, side, side))
    ]
    if not constant:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, W.shape))
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")] if constant else [],
    )
    opset = [helper.make_opsetid("", 17)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return made.SerializeToString()


def found(source: bytes = model(), **options: Any) -> list[Task]:
    given: Any = {"records": False, "cache": False, **PROCESSOR, **options}
    made = decision_tasks(source, **given)
    return [t for t in made if t.name.startswith("form of ")]


def names(task: Task) -> list[str]:
    return [c.sketch for c in task.space]


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "records.sqlite"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    yield path


def choose(path: Path, key: str, form: str, gain: float = 1.5) -> None:
    with Records(path) as records:
        run = records.begin("model.onnx")
        candidate = Candidate(form, {})
        records.choose(run, key, "form of conv", candidate, 1e-3, gain * 1e-3)
        records.end(run)


def kernels(source: bytes, path: Path, **options: Any) -> list[str]:
    """The names of the kernels that a model has with the records of a file."""
    given: Any = {**PROCESSOR, "records": path, "cache": False, **options}
    return [t.name for t in tasks(source, **given)]


def is_used(source: bytes, path: Path, **options: Any) -> bool:
    with events.record() as log:
        kernels(source, path, **options)
    return any(e.kind == "decision-used" for e in log)


def test_a_convolution_has_its_forms_the_default_first() -> None:
    (task,) = found()
    assert sorted(names(task)) == ["F(2)", "direct", "windows"]
    (fast,) = found(math="fast")
    assert sorted(names(fast)) == ["F(2)", "F(4)", "direct", "windows"]
    made = tasks(model(), records=False, cache=False, **PROCESSOR)
    default = [t.name for t in made]
    is_tiled = any("F(2,3)" in name for name in default)
    assert names(task)[0] == ("F(2)" if is_tiled else "direct")
    assert {*default} <= {*task.kernels}


def test_equal_convolutions_are_one_task() -> None:
    """The first reads channels in front, and the last writes them there."""
    made = found(model(layers=5))
    (task,) = (t for t in made if t.calls > 1)
    assert (len(made), task.calls) == (3, 3)
    assert len([k for k in task.kernels if k.endswith(" at 8")]) == 3


@pytest.mark.parametrize(
    ("source", "options"),
    [(model(), {"math": "exact"}), (model(constant=False), {"math": "default"})],
)
def test_what_has_one_form_has_no_task(source: bytes, options: Any) -> None:
    """Exact arithmetic keeps the order of sums; filters of run time cannot be transformed, and
    windows of run time cannot be split."""
    assert found(source, **options) == []


@pytest.mark.parametrize("form", ["direct", "windows", "F(2)", "F(4)"])
def test_each_form_computes_the_convolution(form: str, tmp_path: Path) -> None:
    """As the tuner's worker judges it: a wrong program is seen, a form's rounding is not."""
    (task,) = found(math="fast")
    artifact = tmp_path / "form.tw"
    artifact.write_bytes(task.build(task.schedule(Candidate(form, {}))))
    run = Executable(load(artifact), threads=1)
    for case in unpack(task.reference()):
        (result,) = case.results
        x = np.resize(case.inputs[0], 16 * 16 * 16).reshape(run.inputs[0].shape)
        (y,) = run.run({run.inputs[0].name: x})
        flat = np.ascontiguousarray(y).reshape(-1)
        assert result.wrong(flat) is None
        off = flat.copy()
        off[7] += 0.01 * np.abs(flat).max()
        assert result.wrong(off) is not None


def test_a_form_that_is_not_possible_has_no_program() -> None:
    (task,) = found()
    for candidate in (Candidate("F(4)", {}), Candidate("direct", {"a": 1})):
        with pytest.raises(ScheduleError, match="cannot be computed"):
            task.schedule(candidate)


@pytest.mark.parametrize("form", ["direct", "windows", "F(2)"])
def test_a_record_decides_and_is_said(path: Path, form: str) -> None:
    (task,) = found(model(relu=True), mcpu="native")
    choose(path, task.key, form)
    given: Any = {"threads": 1, "cache": False}
    with events.record() as log:
        exe = tw.compile(model(relu=True), records=path, **given)
    (said,) = (e.fields for e in log if e.kind == "decision-used")
    assert (said["alternative"], said["gain"]) == (form, 1.5)
    made = [e.fields["name"] for e in log if e.kind == "kernel-ready"]
    assert any("F(2,3)" in name for name in made) == (form == "F(2)")
    assert any(" at 8" in name for name in made) == (form == "windows")
    (used,) = exe.model.meta["tuned"]
    assert (used["alternative"], used["gain"]) == (form, 1.5)
    x = rng.standard_normal((1, 16, 16, 16)).astype(np.float32)
    plain = tw.compile(model(relu=True), records=False, **given)
    np.testing.assert_allclose(exe(x), plain(x), rtol=1e-4, atol=1e-4)


OTHERS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "size": (model(17), {}),
    "stride": (model(stride=2), {}),
    "what follows": (model(relu=True), {}),
    "weights of run time": (model(constant=False), {}),
    "threads": (model(), {"threads": 2}),
    "math": (model(), {"math": "fast"}),
    "processor": (model(), {"mcpu": "x86-64-v4"}),
}


@pytest.mark.parametrize("which", OTHERS)
def test_a_record_is_not_for_another_convolution(path: Path, which: str) -> None:
    source, options = OTHERS[which]
    (task,) = found()
    choose(path, task.key, "windows")
    assert is_used(model(), path)
    assert not is_used(source, path, **options)


def test_explain_tells_the_form(path: Path) -> None:
    (task,) = found()
    choose(path, task.key, "windows")
    made = schedules(model(), records=path, cache=False, **PROCESSOR)
    assert all(
        "form: windows, by a tuning record, 1.50x of default" in r.reasons for r in made
    )


def test_a_record_is_for_an_equal_convolution_of_other_names(path: Path) -> None:
    """Other weights of the same size, too: they do not decide which form is fastest."""
    (task,) = found()
    choose(path, task.key, "windows")
    assert is_used(model(weights=2 * W), path)
    other = onnx.load_from_string(model())
    other.graph.node[0].input[0] = other.graph.input[0].name = "picture"
    assert is_used(other.SerializeToString(), path)


def test_the_record_of_a_schedule_names_no_form(path: Path) -> None:
    """Though both are about the same Computations."""
    (task,) = found(model(stride=2))
    (kernel,) = tasks(model(stride=2), records=False, cache=False, **PROCESSOR)
    assert Key.parse(kernel.key).digest != Key.parse(task.key).digest
    choose(path, kernel.key, "windows")
    assert not is_used(model(stride=2), path)


def test_a_form_of_another_version_is_not_used(path: Path) -> None:
    (task,) = found()
    key = Key.parse(task.key)
    choose(path, replace(key, schedules=key.schedules + 1).text, "windows")
    assert not is_used(model(), path)


def test_a_form_that_math_forbids_is_refused_with_a_warning(path: Path) -> None:
    """Its rounding errors are larger than what the user allows."""
    (task,) = found()
    choose(path, task.key, "F(4)")
    with pytest.warns(TilewrightWarning, match=r"cannot be computed as F\(4\)"):
        made = kernels(model(), path)
    assert made == kernels(model(), path, records=False)


def test_a_form_is_refused_once_for_equal_convolutions(path: Path) -> None:
    source = model(layers=5)
    (task,) = (t for t in found(source) if t.calls > 1)
    choose(path, task.key, "F(4)")
    with pytest.warns(TilewrightWarning) as said:
        made = kernels(source, path)
    assert len([w for w in said if "cannot be computed" in str(w.message)]) == 1
    assert made == kernels(source, path, records=False)


@pytest.mark.slow
def test_code_for_ranges_of_sizes_is_right_with_a_record_of_one(path: Path) -> None:
    """Plans of several sizes must be alike, so a record is only for code of its size."""
    (task,) = found(mcpu="native")
    choose(path, task.key, "windows")
    source = onnx.load_from_string(model())
    for axis in (2, 3):
        source.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "n"
    given: Any = {"threads": 1, "cache": False}
    exe = tw.compile(source, dims={"n": (14, 20)}, records=path, jit=False, **given)
    for n in (14, 16, 19):
        x = rng.standard_normal((1, 16, n, n)).astype(np.float32)
        plain = tw.compile(model(n), records=False, **given)
        np.testing.assert_allclose(exe(x), plain(x), rtol=1e-4, atol=1e-4)


def test_a_withdrawn_form_is_not_used(path: Path) -> None:
    (task,) = found()
    choose(path, task.key, "windows")
    with Records(path) as records:
        records.withdraw(records.begin("model.onnx"), task.key, task.name)
    assert not is_used(model(), path)


QUICK = Timing(round_seconds=1e-4, seconds=0.01)
FEW = How("random", "analytic", timing=QUICK)


def tuned(path: Path, source: bytes = model(), **more: Any) -> Any:
    given = {"trials": 24, "threads": 1, "how": FEW, "records": path, **more}
    return tw.tune(source, **given)


def _windows(outcomes: Any) -> list[Any]:
    """The outcomes of forms, as if windows had been the fastest."""
    chosen = []
    for o in outcomes:
        if o.task.name.startswith("form of "):
            best = Trial(Candidate("windows", {}), Measurement(Status.OK, (1e-6,)))
            default = Trial(o.task.space.default(), Measurement(Status.OK, (2e-6,)))
            chosen.append(replace(o, best=best, default=default, confidence=1.0))
    return chosen


@pytest.mark.slow
def test_tuning_measures_every_form(path: Path) -> None:
    found = tuned(path)
    forms = [k for k in found.kernels if k.name.startswith("form of ")]
    assert [(k.calls, k.trials) for k in forms] == [(1, 3)]
    assert found.trials == 24
    with Records(path, write=False) as read:
        rows = [r for r in read.records() if r.task == forms[0].name]
    tried = {r.trial.candidate.sketch for r in rows}
    assert tried == {"direct", "windows", "F(2)"}
    assert {str(r.trial.measurement.status) for r in rows} == {"ok"}
    assert "form of " in str(found)


@pytest.mark.parametrize(
    "more", [{"trials": 3}, {"source": model(constant=False)}, {"math": "exact"}]
)
def test_without_trials_or_forms_only_kernels_are_tuned(path: Path, more: Any) -> None:
    found = tuned(path, **more)
    assert not any(k.name.startswith("form of ") for k in found.kernels)
    assert found.kernels


def test_one_kernel_is_tuned_without_forms(path: Path) -> None:
    (first, *_) = tasks(model(), records=False, cache=False, threads=1)
    found = tuned(path, kernels=[first.name], trials=8)
    assert [k.name for k in found.kernels] == [first.name]


@pytest.mark.slow
def test_the_kernels_of_the_chosen_form_are_tuned(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "improved", _windows)
    monkeypatch.setattr(
        tuning,
        "kept",
        lambda found, *_: (found, NetworkTimes(2.0, 1.0, {}) if found else None),
    )
    found = tuned(path)
    assert any(k.name.endswith(" at 8") for k in found.kernels)
    assert found.before is not None
    with warnings.catch_warnings(action="error"):
        made = kernels(model(), path, mcpu="native")
    assert any(name.endswith(" at 8") for name in made)
    # Tuned again, the default is the same as before, and the choice is measured again.
    again = tuned(path)
    assert again.kernels[0].name == found.kernels[0].name


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both parts of it: neither is measured again."""
    before = tuned(path)
    with Records(path) as records:
        records._db.execute("update runs set ended = null, process = ''")
    with events.record() as log:
        after = tuned(path)
    assert len([e for e in log if e.kind == "tune-resumed"]) == 2
    assert after.trials == before.trials
    assert not [e for e in log if e.kind == "trial"]


def test_a_listed_space() -> None:
    one, two, three = (Candidate(name, {}) for name in ("one", "two", "three"))
    space = ListedSpace([one, two, three, one])
    r = Random(0)
    assert (space.size, space.default(), list(space)) == (3, one, [one, two, three])
    assert {space.sample(r) for _ in range(50)} == {one, two, three}
    assert {space.neighbor(two, r) for _ in range(50)} == {one, three}
    assert {space.cross(one, two, r) for _ in range(50)} == {one, two}
    assert ListedSpace([one]).neighbor(one, r) == one
