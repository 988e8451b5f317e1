"""The generators of a campaign, and what their failures become."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from tilewright.frontends.onnx import load
from tilewright.graph.nodes import Graph
from tilewright.schedule import Trace
from tilewright.testing import (
    graph_runs,
    mutate_artifacts,
    mutate_models,
    random_operators,
    random_stages,
    schedule_runs,
)
from tilewright.testing.fuzz import written
from tilewright.testing.fuzz.worker import CaseGenerator, FuzzFinding, Tell
from tilewright.testing.graphs import Case
from tilewright.testing.random_schedules import Coverage
from tilewright.testing.reduce import reduce_case
from tilewright.testing.steering import Steering

HEADER: Final = """\
# ruff: noqa: E501, F401
import base64

import numpy as np
import onnx.parser
from onnx import numpy_helper

from tilewright.base.dtypes import dtype_of
"""


# --------------------------------------------------------------------------------- schedules

_MET: Coverage = (
    Counter()
)  # of this process: steers to pairs of primitives not combined yet

SCHEDULE: Final = """\
import hashlib

from tilewright.schedule import Trace
from tilewright.testing.schedule_runs import problem, program

STEPS = {steps!r}


def test_schedules_{seed}():
    kernel = program({seed})
    assert hashlib.sha256(repr(kernel).encode()).hexdigest() == (
        "{digest}"
    ), "the generator makes another program now: this test says nothing"
    assert problem(kernel, Trace.from_json(STEPS).steps, {level!r}, {seed}) is None
"""


def _schedule(seed: int, tell: Tell) -> FuzzFinding | None:
    def told(trace: Trace) -> None:
        tell(trace.to_json())

    failure = schedule_runs.run(seed, _MET, tell=told)
    if failure is None:
        return None
    return _broken(failure)


def _met_by_schedules() -> Coverage:
    return _MET


def _again(seed: int, told: str) -> FuzzFinding | None:
    steps = Trace.from_json(told).steps
    level = _level(seed)
    kernel = schedule_runs.program(seed)
    reason = schedule_runs.problem(kernel, steps, level, seed)
    if reason is None:
        return None
    failure = schedule_runs.smallest(seed, kernel, steps, reason, level)
    return _broken(failure)


def _broken(failure: schedule_runs.ScheduleFailure) -> FuzzFinding:
    kernel = repr(schedule_runs.program(failure.seed))
    steps = Trace(failure.steps).to_json()
    level = _level(failure.seed)
    digest = hashlib.sha256(kernel.encode()).hexdigest()
    test = SCHEDULE.format(
        seed=failure.seed,
        steps=steps,
        level=level,
        digest=digest,
    )
    return FuzzFinding(f"{failure}\n{failure.reason}", test)


def _level(seed: int) -> str | None:
    levels = schedule_runs.levels_here()
    if levels:
        return levels[seed % len(levels)]
    return None


# ---------------------------------------------------------------------------- graphs and stages

GRAPH: Final = """\
from tilewright.frontends.onnx import load
from tilewright.testing.graph_runs import Setting, problem
from tilewright.testing.graphs import Case

{case}

def test_graphs_{seed}():
    assert not problem(Case(load(model), inputs, others), {setting!r})
"""

STAGES: Final = """\
from tilewright.frontends.onnx import load
from tilewright.testing.graphs import Case
from tilewright.testing.random_stages import run_case

{case}

def test_stages_{seed}():
    assert run_case({seed}, Case(load(model), inputs), native={native}) is None
"""


_STEERING: Final = (
    Steering()
)  # of this process: to rules, passes and sketches not combined yet


def _graph(seed: int, tell: Tell) -> FuzzFinding | None:
    def told(case: Case) -> None:
        tell(_written(case))

    failure = graph_runs.run(seed, None, _STEERING, told)
    return _wrong_graph(seed, failure)


def _met_by_graphs() -> Coverage:
    return _STEERING.met


def _written(case: Case) -> str:
    others = [
        written.arrays(f"other{n}", inputs) for n, inputs in enumerate(case.others)
    ]
    names = ", ".join(f"other{n}" for n in range(len(others)))
    return (
        written.case(case.graph, case.inputs)
        + "".join(others)
        + f"others = [{names}]\n"
    )


def _graph_again(seed: int, told: str) -> FuzzFinding | None:
    names: dict[str, Any] = {}
    exec(HEADER + told, names)  # what this module wrote
    case = Case(load(names["model"]), names["inputs"], names["others"])
    failure = graph_runs.run_case(seed, case)
    return _wrong_graph(seed, failure)


def _wrong_graph(
    seed: int, failure: graph_runs.GraphFailure | None
) -> FuzzFinding | None:
    if failure is None:
        return None
    case = _written(failure.case)
    test = GRAPH.format(
        case=case,
        seed=seed,
        setting=failure.setting,
    )
    return FuzzFinding(failure.reason, HEADER + test)


def _stages(seed: int, tell: Tell) -> FuzzFinding | None:
    """Interpreted after every pass; every second is compiled, too, which takes most of the time."""
    native = seed % 2 == 0
    case = random_stages.case_of(seed)
    if random_stages.run_case(seed, case, native=native) is None:
        return None

    def fails(graph: Graph, inputs: Mapping[str, Any]) -> bool:
        return (
            random_stages.run_case(seed, Case(graph, inputs), native=native) is not None
        )

    small = reduce_case(case, fails)
    made = written.case(small.graph, small.inputs)
    test = STAGES.format(
        case=made,
        seed=seed,
        native=native,
    )
    return FuzzFinding(
        str(random_stages.run_case(seed, small, native=native)), HEADER + test
    )


# -------------------------------------------------------------------------------- operators

OPERATOR: Final = """\
from tilewright.testing.operator_trials import OperatorTrial
from tilewright.testing.random_operators import judged

{case}

def test_operators_{seed}():
    how, failure = judged(OperatorTrial({seed}, model, inputs, {special}), {native})
    assert failure is None, str(failure)
"""


def _operator(seed: int, tell: Tell) -> FuzzFinding | None:
    native = seed % 4 != 3
    failure = random_operators.run(seed, native)
    if failure is None:
        return None
    t = failure.trial
    case = written.model(t.model) + written.arrays("inputs", t.inputs)
    test = OPERATOR.format(
        case=case,
        seed=seed,
        special=t.special,
        native=native,
    )
    return FuzzFinding(
        f"{failure}\n{failure.kind} {t.model.graph.node[0].op_type}", HEADER + test
    )


# ------------------------------------------------------------------------------- damaged files

_mutants: Final = mutate_models.MutantProcess()  # its process has its own limits


def _model(seed: int, tell: Tell) -> FuzzFinding | None:
    failure = _mutants.run(seed)
    if failure is None:
        return None
    return FuzzFinding(str(failure), "")


def _artifact(seed: int, tell: Tell) -> FuzzFinding | None:
    failure = mutate_artifacts.run(seed)
    if failure is None:
        return None
    return FuzzFinding(str(failure), "")


GENERATORS: Final = {
    g.name: g
    for g in (
        CaseGenerator("schedules", _schedule, _again, met=_met_by_schedules),
        CaseGenerator("stages", _stages),
        CaseGenerator("graphs", _graph, _graph_again, met=_met_by_graphs),
        CaseGenerator("operators", _operator),
        CaseGenerator("models", _model),
        CaseGenerator("artifacts", _artifact),
    )
}
