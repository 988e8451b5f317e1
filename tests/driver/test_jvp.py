"""tw.jvp: directional derivatives, against differences in float64 and against tw.grad."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, numpy_helper

import tilewright as tw
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.graph import interp

RNG = np.random.default_rng(0)
STEP = 1e-6


def model(body: str, given: str, result: str, **constants: Any) -> ModelProto:
    found = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 22]> g ({given}) => ({result}) {{ {body} }}'
    )
    for name, shape in constants.items():
        array = RNG.standard_normal(shape)
        found.graph.initializer.append(numpy_helper.from_array(array, name))
    return found


def evaluated(graph: tw.Graph, values: dict[str, Any]) -> dict[str, Any]:
    return interp.evaluate(graph, values)


def check(source: ModelProto, by: list[str] | None = None) -> tw.Graph:
    """Equal to differences of the outputs along a random direction; the model's outputs first."""
    graph = tw.jvp(source, by)
    values = {v.name: RNG.standard_normal(v.extents) for v in graph.inputs}
    got = evaluated(graph, values)
    ends = []
    for sign in (1, -1):
        moved = dict(values)
        for name in values:
            if f"tangent.{name}" in values:
                moved[name] = values[name] + sign * STEP * values[f"tangent.{name}"]
        ends.append(evaluated(graph, moved))
    for name, a in got.items():
        if not name.startswith("tangent."):
            slope = (ends[0][name] - ends[1][name]) / (2 * STEP)
            np.testing.assert_allclose(got[f"tangent.{name}"], slope, 1e-4, 1e-6)
            assert got[f"tangent.{name}"].shape == a.shape
    return graph


CASES = {
    "products": model(
        "p = MatMul(x, w) r = Relu(p) y = MatMul(r, x)",
        "double[4, 4] x", "double[4, 4] y", w=(4, 4),
    ),
    "a convolution, pooled": model(
        "c = Conv(x, w, b) s = Sigmoid(c) y = MaxPool<kernel_shape = [2, 2]>(s)",
        "double[1, 2, 6, 6] x", "double[1, 3, 3, 3] y", w=(3, 2, 3, 3), b=(3,),
    ),
    "attention": model(
        "k = Transpose<perm = [1, 0]>(x) s = MatMul(x, k) p = Softmax(s) y = MatMul(p, x)",
        "double[5, 3] x", "double[5, 3] y",
    ),
    "a normalization": model(
        "y = LayerNormalization(x, w)", "double[3, 8] x", "double[3, 8] y", w=(8,)
    ),
    "two results, one of which the other needs": model(
        "y = Exp(x) z = Mul(y, w)", "double[3] x, double[3] w", "double[3] y, double[3] z"
    ),
    "an input that is a result, and a sum whose terms get one flow": model(
        "y = Add(x, w) z = Identity(x)",
        "double[3] x, double[3] w", "double[3] y, double[3] z",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_outputs_change_as_differences_say(name: str) -> None:
    check(CASES[name])


def test_of_a_loss_it_is_the_gradient_times_the_direction() -> None:
    body = "p = MatMul(x, w) t = Tanh(p) q = Mul(t, t) y = ReduceSum<keepdims = 0>(q)"
    source = model(body, "double[2, 3] x", "double y", w=(3, 3))
    x, t = (RNG.standard_normal((2, 3)) for _ in range(2))
    (dx,) = (tw.compile(tw.grad(source, "x"), threads=1)(x),)
    y, along = tw.compile(tw.jvp(source, "x"), threads=1)(x, t)
    np.testing.assert_allclose(along, (dx * t).sum(), rtol=1e-10)
    assert y > 0


def test_only_what_is_named_moves() -> None:
    graph = check(CASES["two results, one of which the other needs"], ["w"])
    assert [v.name for v in graph.inputs] == ["x", "w", "tangent.w"]
    values = {n: np.ones(3) for n in ("x", "w", "tangent.w")}
    assert not evaluated(graph, values)["tangent.y"].any()


def test_a_constant_may_be_named() -> None:
    graph = tw.jvp(CASES["products"], ["w"])
    assert [v.name for v in graph.inputs] == ["x", "w", "tangent.w"]


def test_no_work_is_left_of_what_flows_back() -> None:
    """A product's derivative is two products beside it, as in forward mode by hand."""
    graph = tw.jvp(
        model("y = MatMul(x, w)", "double[4, 4] x, double[4, 4] w", "double[4, 4] y")
    )
    names = [op.op_type for op in graph.operations]
    assert names.count("MatMul") == 3


def test_what_has_no_derivative_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Ceil has no derivative"):
        tw.jvp(model("y = Ceil(x)", "float[3] x", "float[3] y"))
    with pytest.raises(InputError, match="no input 'z'"):
        tw.jvp(CASES["products"], "z")
