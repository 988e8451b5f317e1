"""The interpreter of plans: what a plan means, before and after its passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.compute.build import map_
from tilewright.driver.planning import make_plan
from tilewright.expr.nodes import Buffer
from tilewright.frontends.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.nodes import Graph, Value
from tilewright.plan.interp import UNWRITTEN, evaluate
from tilewright.plan.lower import lower
from tilewright.plan.nodes import FusionGroup, Plan
from tilewright.testing.machines import MACHINES

NET = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[4, 6] x, int64[2] k) => (float[n] u, float[4, 2] top, float[4, 6] y)
<float[4, 6] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6},
 int64[1] two = {2}>
{
  s = Mul(x, w)
  y = Softmax<axis = 1>(s)
  top, at = TopK(y, two)
  r = Relu(s)
  all = Unique<sorted = 1>(r)
  u = Neg(all)
}"""

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 6)).astype(np.float32)


def plans() -> list[Plan]:
    """Of the network, with host fallbacks and a Kernel of its own: as lowered, and in the end."""
    graph = load(onnx.parser.parse_model(NET))
    return [lower(graph), make_plan(graph, MACHINES["haswell"].target())]


def expected() -> list[Any]:
    s = X * np.arange(1, 7, dtype=np.float32)
    e = np.exp(s - s.max(1, keepdims=True))
    y = e / e.sum(1, keepdims=True)
    return [-np.unique(np.maximum(s, 0)), -np.sort(-y, axis=1)[:, :2], y]


@pytest.mark.parametrize("n", [0, 1])
def test_a_plan_with_host_calls_gives_what_the_model_does(n: int) -> None:
    plan = plans()[n]
    assert plan.host_fallbacks and any(s.kernel for s in plan.groups)
    found = evaluate(plan, {"x": X, "k": np.zeros(2, np.int64)}, OnnxFallback())
    for got, want in zip(found, expected(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::tilewright.base.errors.TilewrightWarning")
def test_so_does_its_code() -> None:
    exe = tw.compile(onnx.parser.parse_model(NET), cache=False)
    for got, want in zip(exe(X, np.zeros(2, np.int64)), expected(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_every_input_and_constant_is_needed() -> None:
    plan = plans()[0]
    with pytest.raises(InputError, match="no array for the input k"):
        evaluate(plan, {"x": X}, OnnxFallback())
    with pytest.raises(
        InputError, match=r"k: int64\[2\] was given an array of shape \(4, 6\)"
    ):
        evaluate(plan, {"x": X, "k": X}, OnnxFallback())
    with pytest.raises(InputError, match=r"the constant .* has no contents"):
        evaluate(
            replace(plan, data={}), {"x": X, "k": np.zeros(2, np.int64)}, OnnxFallback()
        )


def test_what_nobody_has_written_is_marked() -> None:
    x, y = Buffer("x", (2,), float32), Buffer("y", (4,), float32)
    part = map_("part", y, lambda i: x[i] + 1.0, extents=(2,))
    values = {Value("x", float32, (2,)): x, Value("y", float32, (4,)): y}
    graph = Graph("g", *((v,) for v in values), ())
    plan = Plan(graph, (FusionGroup("part", (part,)),), values)
    (found,) = evaluate(plan, {"x": np.ones(2, np.float32)})
    assert found.tolist() == [2.0, 2.0, UNWRITTEN, UNWRITTEN]
