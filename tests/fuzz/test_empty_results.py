"""An empty result of a body has the rank that its type tells: a graph needs it, or says nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp
from tilewright.testing import random_graphs
from tilewright.testing.graph_control import CONTROL
from tilewright.testing.graphs import RandomGraphBuilder


def test_a_graph_without_shapes_that_cannot_run_keeps_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = RandomGraphBuilder(random.Random(3), OnnxFallback())
    b.leaf((2, 3), dtypes.float32, fixed=False)
    for _ in range(6):
        try:
            next(iter(CONTROL.values()))[0](b)
        except random_graphs.OperatorRejected:
            continue
    monkeypatch.setattr(random_graphs, "_runs", lambda *args: False)
    case = random_graphs.case_of(b)
    assert all(v.static for op in case.graph.operations for v in op.writes)
    assert interp.evaluate(case.graph, case.inputs, fallback=b.fallback)
    assert not case.others and all(
        isinstance(a, np.ndarray) for a in case.inputs.values()
    )
