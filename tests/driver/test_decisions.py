"""Decisions of the plan: tasks of the tuner; records that `compile` uses where they belong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest
from onnx import ModelProto, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import TilewrightWarning
from tilewright.cli.records import used_line
from tilewright.driver import schedules
from tilewright.driver.decision_tasks import decision_tasks
from tilewright.driver.tasks import tasks
from tilewright.plan.decisions import DECISIONS
from tilewright.runtime.bundle import load
from tilewright.runtime.executable import Executable
from tilewright.tune.base import Candidate, Task
from tilewright.tune.measure.reference import unpack
from tilewright.tune.records.database import Records
from tilewright.tune.records.key import Key

rng = np.random.default_rng(0)


def model(text: str, **weights: tuple[int, ...]) -> ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{text}')
    for name, shape in weights.items():
        array = (rng.standard_normal(shape) / 4).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


def normalized(rows: int = 8, before: str = "Add", after: str = "Identity") -> Any:
    """A sum that is a result, and its normalization: kernels that may be one."""
    return model(
        f"g (float[{rows},64] x, float[{rows},64] y) => (float[{rows},64] s, float[{rows},64] n) {{"
        f"s = {before}(x, y) l = LayerNormalization(s, w, b) n = {after}(l) }}",
        w=(64,),
        b=(64,),
    )


def padded(side: int = 16, before: str = "Relu", after: str = "Identity") -> Any:
    """A convolution that reads another one's results with padding."""
    return model(
        f"g (float[1,8,{side},{side}] x) => (float[1,16,{side},{side}] z) {{"
        f"c = Conv(x, v) r = {before}(c) d = Conv<pads=[2,2,2,2]>(r, w) z = {after}(d) }}",
        v=(16, 8, 1, 1),
        w=(16, 16, 5, 5),
    )


def pooled(side: int = 66, before: str = "Relu", after: str = "Identity") -> Any:
    """A convolution, pooled between two others; its results are larger than the second cache."""
    half = side // 2
    return model(
        f"g (float[1,3,{side},{side}] x) => (float[1,8,{half},{half}] y) {{"
        f"c = Conv<pads=[1,1,1,1]>(x, w, b) r = {before}(c)"
        " p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)"
        f"d = Conv(p, v) y = {after}(d) }}",
        w=(32, 3, 3, 3),
        b=(32,),
        v=(8, 32, 1, 1),
    )


def joined(side: int = 16, before: str = "Relu", after: str = "Identity") -> Any:
    """A convolution's results that a pooling and a concatenation read."""
    return model(
        f"g (float[1,8,{side},{side}] x) => "
        f"(float[1,16,{side - 8},{side - 8}] p, float[1,8,{side},{side}] z) {{"
        f"c = Conv(x, v) r = {before}(c) d = Conv(x, v)"
        "p = MaxPool<kernel_shape=[9,9], strides=[1,1]>(r)"
        f"j = Concat<axis=1>(r, d) e = Conv(j, w) z = {after}(e) }}",
        v=(16, 8, 1, 1),
        w=(8, 32, 1, 1),
    )


# By decision: a model of a size and of other operators at the site, its usual alternative, the
# other one, and the kernels with each.
CASES: dict[str, tuple[Any, str, str, tuple[int, int]]] = {
    "merging": (normalized, "together", "apart", (1, 2)),
    "pooling": (pooled, "together", "apart", (2, 3)),
    "concatenation": (joined, "in place", "copied", (4, 4)),
    "padding": (padded, "stored", "guarded", (3, 2)),
}
each = pytest.mark.parametrize("decision", CASES)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "small.toml").write_text("l2 = 262144\n")
    yield tmp_path


def options(folder: Path, **more: Any) -> Any:
    given = {"mcpu": "x86-64-v3", "threads": 1, "machine": folder / "small.toml"}
    return {**given, "records": False, "cache": False, **more}


def task_of(decision: str, folder: Path, source: Any = None) -> Task:
    found = decision_tasks(source or CASES[decision][0](), **options(folder))
    (task,) = (t for t in found if t.name.startswith(f"{decision} of "))
    return task


def choose(folder: Path, key: str, alternative: str) -> Path:
    path = folder / "records.sqlite"
    with Records(path) as records:
        run = records.begin("model.onnx")
        records.choose(run, key, "site", Candidate(alternative, {}), 1e-3, 1.5e-3)
        records.end(run)
    return path


def kernels(source: Any, folder: Path, **more: Any) -> list[str]:
    return [t.name for t in tasks(source, **options(folder, **more))]


def is_used(source: Any, folder: Path, **more: Any) -> bool:
    with events.record() as log:
        kernels(source, folder, **more)
    return any(e.kind == "decision-used" for e in log)


def test_every_decision_has_a_case() -> None:
    """Forms have a file of their own."""
    assert {*CASES, "form"} == {d.name for d in DECISIONS}


@each
def test_a_site_has_its_alternatives_the_default_first(
    decision: str, folder: Path
) -> None:
    source, usual, other, (default, _) = CASES[decision]
    task = task_of(decision, folder)
    assert [c.sketch for c in task.space] == [usual, other]
    made = kernels(source(), folder)
    assert len(made) == default
    assert {*task.kernels} & {*made}


@each
def test_each_alternative_computes_the_site(decision: str, folder: Path) -> None:
    """As the tuner's worker judges it: a wrong program is seen, another rounding is not."""
    _, usual, other, _ = CASES[decision]
    task = task_of(decision, folder)
    cases = unpack(task.reference())
    for name in (usual, other):
        artifact = folder / f"{name}.tw"
        artifact.write_bytes(task.build(task.schedule(Candidate(name, {}))))
        run = Executable(load(artifact), threads=1)
        for case in cases:
            shapes = [t.shape for t in run.inputs]
            feeds = {
                t.name: np.resize(a, int(np.prod(shape))).reshape(shape)
                for t, shape, a in zip(run.inputs, shapes, case.inputs, strict=True)
            }
            for result, y in zip(case.results, run.run(feeds), strict=True):
                flat = np.ascontiguousarray(y).reshape(-1)
                assert result.wrong(flat) is None
                off = flat.copy()
                off[7] += 0.05 * np.abs(flat).max()
                assert result.wrong(off) is not None


@each
@pytest.mark.parametrize("which", [0, 1])
def test_a_record_decides_and_is_said(decision: str, which: int, folder: Path) -> None:
    """Also where it says what the estimate would."""
    make, *names, counts = CASES[decision]
    source = make()
    path = choose(folder, task_of(decision, folder, source).key, names[which])
    with events.record() as log:
        exe = tw.compile(source, **options(folder, records=path))
    (said,) = (e.fields for e in log if e.kind == "decision-used")
    assert (said["decision"], said["alternative"]) == (decision, names[which])
    assert len(exe.model.kernels) == counts[which]
    usual = tw.compile(source, **options(folder))
    both = [[k.symbol for k in e.model.kernels] for e in (usual, exe)]
    assert (both[0] == both[1]) == (which == 0)
    (used,) = exe.model.meta["tuned"]
    assert (used["decision"], used["gain"]) == (decision, 1.5)
    assert "1 decision of the plan by records" in used_line(exe.model.meta)
    feeds = {
        t.name: rng.standard_normal(t.shape).astype(np.float32) for t in exe.inputs
    }
    wanted = onnx.reference.ReferenceEvaluator(source).run(None, feeds)
    for got, want in zip(exe.run(feeds), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


@each
def test_explain_tells_the_decision(decision: str, folder: Path) -> None:
    make, _, other, _ = CASES[decision]
    path = choose(folder, task_of(decision, folder).key, other)
    made = schedules(make(), **options(folder, records=path))
    said = f"{decision}: {other}, by a tuning record, 1.50x of default"
    assert any(said in (*r.fused, *r.reasons) for r in made)


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "before": ({"before": "Sigmoid"}, {}),
    "after": ({"after": "Sigmoid"}, {}),
    "threads": ({}, {"threads": 2}),
    "math": ({}, {"math": "fast"}),
    "processor": ({}, {"mcpu": "x86-64-v4"}),
    "caches": ({}, {"machine": "other.toml"}),
}


@each
@pytest.mark.parametrize("which", OTHERS)
def test_a_record_is_not_for_another_site(
    decision: str, which: str, folder: Path
) -> None:
    make, _, other, _ = CASES[decision]
    changed, more = OTHERS[which]
    if decision == "merging" and "before" in changed:
        changed = {"before": "Sub"}
    if decision == "pooling" and "after" in changed:
        changed = {"before": "Tanh"}  # what follows the pooling is no part of the site
    if "machine" in more:
        (folder / "other.toml").write_text("l2 = 196608\n")
        more = {"machine": folder / "other.toml"}
    path = choose(folder, task_of(decision, folder).key, other)
    assert is_used(make(), folder, records=path)
    assert not is_used(make(**changed), folder, records=path, **more)


@each
def test_a_record_is_not_for_another_size(decision: str, folder: Path) -> None:
    make, _, other, _ = CASES[decision]
    path = choose(folder, task_of(decision, folder).key, other)
    size = {"merging": 9, "pooling": 70}.get(decision, 17)
    assert not is_used(make(size), folder, records=path)


@each
def test_a_record_of_another_decision_or_version_is_not_used(
    decision: str, folder: Path
) -> None:
    """The site's records as one kernel have another digest, too."""
    make, _, other, _ = CASES[decision]
    key = Key.parse(task_of(decision, folder).key)
    for changed in (
        replace(key, schedules=key.schedules + 1),
        replace(key, operator=key.operator[::-1]),
    ):
        path = choose(folder, changed.text, other)
        assert not is_used(make(), folder, records=path)


@each
def test_an_alternative_that_does_not_exist_is_not_used(
    decision: str, folder: Path
) -> None:
    make, _, _, (default, _) = CASES[decision]
    path = choose(folder, task_of(decision, folder).key, "sideways")
    assert not is_used(make(), folder, records=path)
    assert len(kernels(make(), folder, records=path)) == default


@each
def test_the_alternative_of_another_decision_is_refused_with_a_warning(
    decision: str, folder: Path
) -> None:
    """There are other records, so that keys are asked for."""
    make, _, other, (default, _) = CASES[decision]
    key = task_of(decision, folder).key
    choose(folder, Key.parse(key).text.replace('"-', '"c'), other)
    path = choose(folder, key, "direct")
    with pytest.warns(TilewrightWarning, match="cannot be computed as direct"):
        made = kernels(make(), folder, records=path)
    assert len(made) == default


def test_equal_sites_are_one_task_and_a_record_is_for_all(folder: Path) -> None:
    source = model(
        "g (float[8,64] x, float[8,64] y, float[8,64] u, float[8,64] v) => "
        "(float[8,64] s, float[8,64] n, float[8,64] t, float[8,64] m) {"
        "s = Add(x, y) n = LayerNormalization(s, w, b)"
        "t = Add(u, v) m = LayerNormalization(t, w, b) }",
        w=(64,),
        b=(64,),
    )
    task = task_of("merging", folder, source)
    assert task.calls == 2
    path = choose(folder, task.key, "apart")
    made = [t.calls for t in tasks(source, **options(folder, records=path))]
    assert sum(made) == 4


def twice_padded() -> ModelProto:
    """Two tensors with padding, of which the site of the first has both: its border is small."""
    return model(
        "g (float[1,4,12,12] x) => (float[1,8,12,12] z) {"
        "c = Conv(x, v) r = Sigmoid(c) d = Conv<pads=[1,1,1,1]>(r, w) e = Sigmoid(d)"
        "f = Conv<pads=[4,4,4,4]>(e, u) z = Add(f, r) }",
        v=(8, 4, 1, 1),
        w=(8, 8, 3, 3),
        u=(8, 8, 9, 9),
    )


def test_the_padding_of_each_tensor_is_a_task(folder: Path) -> None:
    """One is stored with its border, the other is not; each has a record of its own."""
    source = twice_padded()
    found = decision_tasks(source, **options(folder))
    made = [t for t in found if t.name.startswith("padding of ")]
    names = [[c.sketch for c in t.space] for t in made]
    assert names == [["stored", "guarded"], ["guarded", "stored"]]
    for task, (_, other), stored in zip(made, names, ([], ["e"]), strict=True):
        path = choose(folder, task.key, other)  # beside those before
        with events.record() as log:
            kernels(source, folder, records=path)
        assert [e.fields["tensor"] for e in log if e.kind == "padded"] == stored


def test_without_records_no_site_is_asked_about(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor with those of schedules alone, which most records are."""
    from tilewright.driver import chosen_decisions

    asked: list[Any] = []
    monkeypatch.setattr(
        chosen_decisions, "key_of_decision", lambda *given: asked.append(given)
    )
    (kernel,) = tasks(normalized(), **options(folder))
    path = choose(folder, kernel.key, "")
    for records in (False, path):
        kernels(normalized(), folder, records=records)
    assert asked == []
