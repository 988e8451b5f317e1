"""Results in memory of their own: which are copied, and under which names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import parser

from tilewright.driver.planning import make_plan
from tilewright.frontends.onnx.load import load
from tilewright.graph.pipeline import graph_pipeline
from tilewright.plan import interp
from tilewright.plan.nodes import Plan
from tilewright.plan.own_results import own_results
from tilewright.plan.verify import verify
from tilewright.targets.registry import target

MODELS = {
    "a result of a step": ("float[2] y", "y = Relu(x)", ["y"]),
    "an input": ("float[2] y, float[2] x", "y = Relu(x)", ["y", "x_result"]),
    "a constant": (
        "float[2] c, float[2] y",
        "c = Constant<value_floats=[1.0, 2.0]>() y = Add(x, c)",
        ["c_result", "y"],
    ),
    "a name that is taken": (
        "float[2] x, float[2] x_result",
        "x_result = Relu(x)",
        ["x_result_2", "x_result"],
    ),
}


def planned(results: str, body: str) -> Plan:
    text = f"g (float[2] x) => ({results}) {{ {body} }}"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]> {text}')
    graph = graph_pipeline("default", None).run(load(model.SerializeToString()))
    return make_plan(graph, target("cpu"))


def names(plan: Plan) -> list[str]:
    return [b.name for b in plan.results]


def check(plan: Plan, own: Plan) -> None:
    """The same values, each result written by a step and no other result."""
    verify(own)
    written = [b for step in own.steps for b in step.writes]
    assert set(own.results) <= set(written)
    assert len(set(own.results)) == len(own.results)
    x = np.array([-1.0, 3.0], np.float32)
    wanted, got = (of(p, x) for p in (plan, own))
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a, b)


def of(plan: Plan, x: Any) -> list[Any]:
    (value,) = plan.graph.inputs
    return list(interp.evaluate(plan, {value.name: x}))


@pytest.mark.parametrize("name", MODELS)
def test_what_no_step_writes_is_copied(name: str) -> None:
    results, body, expected = MODELS[name]
    plan = planned(results, body)
    own = own_results(plan)
    assert names(own) == expected
    check(plan, own)


def test_a_result_that_is_there_twice_is_copied_once() -> None:
    plan = planned(*MODELS["a result of a step"][:2])
    (y,) = plan.graph.outputs
    plan = replace(plan, graph=replace(plan.graph, outputs=(y, y)))
    own = own_results(plan)
    assert names(own) == ["y", "y_result"]
    verify(own)


def test_a_plan_whose_results_are_its_own_stays() -> None:
    plan = planned(*MODELS["a result of a step"][:2])
    assert own_results(plan) is plan
