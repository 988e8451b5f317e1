"""One kernel of the processor at hand is tuned: really scheduled, built, run and compared."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from tilewright.driver.tasks import tasks
from tilewright.runtime.executable import load
from tilewright.tune.base import Budget, Job, Measurement, Status, Task
from tilewright.tune.building import BuildAhead
from tilewright.tune.measure.builder import ProgramBuilder
from tilewright.tune.scheduler import Scheduler, TuningEnd
from tilewright.tune.space.sketch_space import SketchSpace
from tilewright.tune.strategies.prefixes import CompletingSpace
from tilewright.tune.tuner import Tuning, TuningTools


class Here:
    """Runs programs in this process; `wrong` counts those that NumPy disagrees with."""

    slots = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong = 0
        rng = np.random.default_rng(0)
        self.inputs = [
            rng.standard_normal(s).astype(np.float32) for s in ((24, 40), (40, 36))
        ]

    def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        right = np.maximum(self.inputs[0] @ self.inputs[1], 0)
        for job in jobs:
            path = self.folder / "program.tw"
            path.write_bytes(job.artifact)
            program = load(path)
            got = program(*self.inputs)
            self.wrong += not np.allclose(got, right, rtol=1e-4, atol=1e-3)
            rounds = []
            for _ in range(3):
                start = time.perf_counter()
                program(*self.inputs)
                rounds.append(time.perf_counter() - start)
            yield job.number, Measurement(Status.OK, tuple(rounds))

    def close(self) -> None:
        """There is nothing to end."""


def task() -> Task:
    """A product and what follows it."""
    text = (
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[24,40] a, float[40,36] b) => (float[24,36] y) "
        "{ t = MatMul(a, b) y = Relu(t) }"
    )
    [made] = tasks(parser.parse_model(text), mcpu="x86-64-v3", threads=1)
    return made


@pytest.mark.sampled(4)  # the default
@pytest.mark.parametrize("by", ["evolutionary", "tree", "mcts", "bandit"])
def test_a_kernel_is_tuned(by: str, tmp_path: Path) -> None:
    runner = Here(tmp_path)
    recorded = []
    tools = TuningTools(runner, record=lambda task, trial: recorded.append(trial))
    tuning = Tuning(task(), tools, by=by)
    scheduler = Scheduler([tuning], Budget(trials=8), batch=4)
    assert scheduler.run() is TuningEnd.TRIALS
    outcome = tuning.outcome()
    assert recorded == tuning.trials and len({t.candidate for t in recorded}) >= 8
    assert outcome.default is not None and outcome.best is not None
    assert outcome.default.candidate == tuning.task.space.default()
    assert outcome.gain >= 1 and runner.wrong == 0
    assert not set(outcome.failed) - {Status.REFUSED}


def test_programs_are_built_in_other_processes_with_their_reference() -> None:
    class Looking:
        slots = 1

        def __init__(self) -> None:
            self.jobs: list[Job] = []

        def measure(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
            for job in jobs:
                self.jobs.append(job)
                yield job.number, Measurement(Status.OK, (1.0,))

        def close(self) -> None:
            """There is nothing to end."""

    made = task()
    references: list[bytes] = []

    def reference() -> bytes:
        references.append(made.reference())
        return references[-1]

    runner = Looking()
    tools = TuningTools(runner, build=BuildAhead(ProgramBuilder()))
    tuning = Tuning(replace(made, reference=reference), tools, by="random")
    tuning.step(3)
    tuning.step(2)
    assert len(references) == 1
    assert {job.expected for job in runner.jobs} == set(references)
    assert all(job.artifact and job.build_seconds > 0 for job in runner.jobs)


def test_a_build_that_fails_in_its_process_is_one_trial() -> None:
    made = task()

    def build(point: object) -> bytes:
        raise MemoryError("too large")

    tools = TuningTools(Here(Path()), build=BuildAhead(ProgramBuilder()))
    broken = replace(made, build=build, reference=lambda: b"reference")
    tuning = Tuning(broken, tools, by="random")
    [trial] = tuning.step(1)
    assert trial.measurement.status is Status.BUILD
    assert trial.measurement.reason == "MemoryError: too large"


def test_decisions_are_completed_by_the_space(tmp_path: Path) -> None:
    """A space of sketches gives its own schedules, and the missing values of a prefix."""
    own = task()
    space = own.space
    assert isinstance(space, SketchSpace) and isinstance(space, CompletingSpace)
    tuning = Tuning(own, TuningTools(Here(tmp_path)), by="tree", effort=4)
    trials = [*tuning.step(4), *tuning.step(4)]
    assert len({t.candidate for t in trials}) == 8
    assert all(space.nearest(t.candidate) == t.candidate for t in trials)
