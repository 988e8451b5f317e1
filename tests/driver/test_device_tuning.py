"""Kernels of a device are tuned like those of the host: by sketches, measured by its clock."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.targets.cuda.fake import CUresult, Fake
from tests.targets.opencl.running import pocl
from tilewright.base.errors import (
    ArgumentError,
    ArtifactError,
    InputError,
    TilewrightWarning,
)
from tilewright.driver.compile import schedules, text
from tilewright.driver.options import Options
from tilewright.driver.tasks import tasks
from tilewright.driver.tuning import How
from tilewright.driver.tuning_session import Session, budget_of
from tilewright.runtime.device import CompletedEvent, Duration
from tilewright.runtime.device_steps import CopyRun, LaunchRun
from tilewright.runtime.device_time import LaunchWatch
from tilewright.targets.cuda import target as cuda
from tilewright.targets.cuda.driver import gpu_name
from tilewright.targets.cuda.machine import machine
from tilewright.targets.opencl.target import OpenCL
from tilewright.tune.base import Candidate, Task
from tilewright.tune.measure.options import Limits, Timing
from tilewright.tune.records.database import Records
from tilewright.tune.records.key import Key

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[24, 40] x, float[40, 36] w) => (float[24, 36] y) {
  t = MatMul(x, w)
  y = Relu(t)
}"""
MODEL = onnx.parser.parse_model(TEXT)
BUDGET = budget_of(4, None, 0.0)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of a machine by description, on a device of one name."""
    monkeypatch.setattr(OpenCL, "device_here", "a device")
    (tmp_path / "gpu.toml").write_text('like = "generic"')
    return {"target": "opencl", "machine": tmp_path / "gpu.toml", "cache": False}


def chosen(task: Task, sketch: str, path: Path, **values: object) -> Path:
    """Records in which this schedule of a task is twice as fast as the default one."""
    with Records(path) as records:
        run = records.begin("by hand")
        wanted = Candidate(sketch, values)
        records.choose(run, task.key, task.name, wanted, 1e-3, 2e-3)
    return path


def sketch_of(records: Path | bool, options: dict[str, Any]) -> str:
    """The sketch of the model's only kernel."""
    [found] = schedules(MODEL, records=records, **options)
    return found.sketch


def test_kernels_of_a_device_are_tasks(options: dict[str, Any]) -> None:
    [task] = tasks(MODEL, **options)
    key = Key.parse(task.key)
    assert (key.target, key.processor, key.threads) == ("opencl", "a device", 1)
    assert key.constants == "---"
    assert task.space.default().sketch == "by element"
    assert task.space.sample(Random(0)).sketch == "tiles"


def test_targets_whose_schedules_have_no_parameters_have_no_tasks() -> None:
    with pytest.raises(InputError, match="no kernel whose schedule has parameters"):
        tw.tune(MODEL, target="npu", trials=1, records="unused.sqlite")


def test_a_record_decides_the_schedule(tmp_path: Path, options: dict[str, Any]) -> None:
    [task] = tasks(MODEL, **options)
    records = chosen(task, "tiles", tmp_path / "r.sqlite")
    assert sketch_of(False, options) == "by element"
    assert sketch_of(records, options) == "tiles"
    [found] = schedules(MODEL, records=records, **options)
    assert found.tuned is not None and found.tuned.gain == 2.0
    plain, made = (
        text(MODEL, "kernel", records=r, **options) for r in (False, records)
    )
    assert made != plain


def test_a_record_of_another_device_decides_nothing(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = tasks(MODEL, **options)
    records = chosen(task, "tiles", tmp_path / "r.sqlite")
    monkeypatch.setattr(OpenCL, "device_here", "another device")
    assert sketch_of(records, options) == "by element"


def test_what_the_caller_asks_for_is_before_a_record(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    [task] = tasks(MODEL, **options)
    records = chosen(task, "tiles", tmp_path / "r.sqlite")
    asked = {task.name: {"sketch": "by element"}}
    [found] = schedules(MODEL, records=records, schedules=asked, **options)
    assert (found.sketch, found.tuned) == ("by element", None)


def test_a_record_that_is_no_longer_possible_is_withdrawn(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    [task] = tasks(MODEL, **options)
    records = chosen(task, "a sketch of the past", tmp_path / "r.sqlite")
    plain = text(MODEL, "kernel", records=False, **options)
    with pytest.warns(TilewrightWarning, match="tuning record .* is not used"):
        assert text(MODEL, "kernel", records=records, **options) == plain
    with pytest.warns(TilewrightWarning, match="tuning record .* is not used"):
        exe = tw.compile(MODEL, records=records, **options)
    assert "tuned" not in exe.model.meta


def test_results_by_a_record_are_those_of_the_default(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    pocl()
    [task] = tasks(MODEL, **options)
    records = chosen(task, "tiles", tmp_path / "r.sqlite")
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, s).astype(np.float32) for s in ((24, 40), (40, 36)))
    exe = tw.compile(MODEL, records=records, **options)
    assert [t["kernel"] for t in exe.model.meta["tuned"]] == [task.name]
    np.testing.assert_array_equal(exe(x, w), np.maximum(x @ w, 0))


def test_only_launches_are_timed() -> None:
    class Launch(LaunchRun):
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def run(self, values: object) -> CompletedEvent:
            return CompletedEvent(Duration(self.seconds))

    class Copy(CopyRun):
        def __init__(self) -> None:
            """Nothing is copied."""

        def run(self, values: object) -> CompletedEvent:
            return CompletedEvent(Duration(100.0))

    watch = LaunchWatch()
    for step in (Copy(), Launch(2.0), Launch(0.5), Copy()):
        watch(step, None)  # type: ignore[arg-type]
    assert watch.seconds == 2.5


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"fleet": "local:1"}, "a fleet measures kernels of processors only"),
        ({"cost_model": "ansor"}, "it predicts kernels of processors only"),
    ],
)
def test_what_knows_processors_only_is_refused(
    how: dict[str, Any], message: str, options: dict[str, Any]
) -> None:
    given = "", Path("records.sqlite"), How(**how), Options.of(options), BUDGET
    with pytest.raises(ArgumentError, match=message):
        Session([], *given)
    Session([], "", Path("records.sqlite"), How(**how), Options(), BUDGET)


def test_kernels_are_measured_on_the_device(tmp_path: Path) -> None:
    pocl()
    how = How(
        "random",
        timing=Timing(round_seconds=1e-4, seconds=0.01),
        limits=Limits(seconds=60.0),
    )
    records = tmp_path / "records.sqlite"
    found = tw.tune(MODEL, target="opencl", trials=2, how=how, records=records)
    assert found.trials == 2 and not found.failed
    [kernel] = found.kernels
    assert 0 < kernel.best <= kernel.default < 1
    with Records(records, write=False) as read:
        rows = [r for r in read.records() if r.trial.strategy != "final"]
    assert len({r.trial.candidate.key for r in rows}) == 2
    assert all(r.trial.measurement.rounds for r in rows)


def test_a_gpu_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cuda.Cuda(machine("sm_90a"))
    assert gpu_name(Fake()) == "NVIDIA H100"
    monkeypatch.setattr(cuda, "bindings", Fake)
    assert made.device_here == "NVIDIA H100"
    none = {"Init": CUresult.CUDA_ERROR_NO_DEVICE}
    monkeypatch.setattr(cuda, "bindings", lambda: Fake(none))
    assert made.device_here == ""

    def missing() -> object:
        raise ArtifactError("there are no bindings")

    monkeypatch.setattr(cuda, "bindings", missing)
    assert made.device_here == ""
