"""Finding the first operator that differs, alone or only when compiled with its neighbors."""

import numpy as np
import pytest

from tests.cli.conftest import perceptron_model
from tilewright.base import dtypes
from tilewright.cli import diverge
from tilewright.frontends.onnx.load import load
from tilewright.graph.interp import evaluate


@pytest.fixture
def graph():
    return load(perceptron_model().SerializeToString())


FEEDS = {"x": np.random.default_rng(0).standard_normal((2, 8), dtype=np.float32)}


def exact(graph, feeds):
    found = evaluate(graph, feeds)
    return [found[v.name] for v in graph.outputs]


def test_nothing_differs(graph):
    assert diverge.first(graph, FEEDS, exact) is None


def test_an_operator_that_is_wrong_by_itself(graph):
    def wrong(part, feeds):
        return [
            a + 1 if v.name == "r" else a
            for v, a in zip(part.outputs, exact(part, feeds))
        ]

    found = diverge.first(graph, FEEDS, wrong)
    assert (found.operation.name, found.fused) == ("rectify", False)


def test_operators_that_are_wrong_together(graph):
    def wrong(part, feeds):
        fused = len(part.outputs) == 1 and len(part.operations) > 1
        return [a + 1 if fused else a for a in exact(part, feeds)]

    found = diverge.first(graph, FEEDS, wrong)
    assert (found.operation.name, found.fused) == ("rectify", True)
    assert "only when compiled together with its neighbors" in str(found)
    assert found.to_dict()["only_fused"] is True


def test_another_shape_or_nan_differs(graph):
    assert diverge.gap(np.ones(2), np.ones(3)) == float("inf")
    found = diverge.first(graph, FEEDS, lambda g, f: [a * np.nan for a in exact(g, f)])
    assert found.operation.name == "hidden"


def test_tolerances():
    assert diverge.tolerance(dtypes.float32) == 1e-4
    assert diverge.tolerance(dtypes.int64) == diverge.tolerance(dtypes.bool_) == 0
    assert diverge.tolerance(dtypes.float8_e5m2) > diverge.tolerance(dtypes.bfloat16)
    assert diverge.tolerance(dtypes.float32, 0.5) == 0.5
