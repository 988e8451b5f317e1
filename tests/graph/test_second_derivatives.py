"""Derivatives of derivatives: against differences of the first ones, and PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.graph import test_operator_gradients as common
from tests.graph import test_rare_gradients as rare

CASES = {
    f"{source.__name__.rpartition('_')[0][-10:]} {name}": (source, name)
    for source in (common, rare)
    for name in source.CASES
}
CUSTOM = {"com.microsoft": 1, "ai.onnx.ml": 3}
# Their values are of float32, of which second differences say nothing.
NARROW = {*common.IN_FLOAT32, *rare.IN_FLOAT32}


def squared(source: Any, name: str) -> Any:
    """x... and v -> the sum of v times the squared result of a case."""
    body, inputs, out, *opset = source.CASES[name]
    made = source.model(body, inputs, out, *opset)
    for domain, version in CUSTOM.items():
        if domain in body:
            made.opset_import.add(domain=domain, version=version)
    nodes = [n for n in made.graph.node if n.op_type != "Gradient"]
    nodes += [
        helper.make_node("Mul", ["o", "o"], ["squared"]),
        helper.make_node("Mul", ["squared", "v"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0),
    ]
    end = helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])
    del made.graph.node[:], made.graph.output[:]
    made.graph.node.extend(nodes)
    made.graph.output.append(end)
    return made


def native(source: Any) -> Any:
    return tw.compile(source, threads=1, cache=False)


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:1 operator has no native code")
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_differences(case: str) -> None:
    source, name = CASES[case]
    _, inputs, out, *_ = source.CASES[name]
    rng = np.random.default_rng(17)
    made = squared(source, name)
    first = tw.grad(made, list(inputs))
    both = native(tw.jvp(first, list(inputs)))  # every case has a derivative
    if name in NARROW:
        return
    slope = native(first)
    weights = rng.uniform(0.5, 1.5, out)
    along = {n: rng.uniform(-1, 1, a.shape) for n, a in inputs.items()}
    step = 1e-6

    def moved(by: float) -> list[Any]:
        arrays = [a + by * along[n] for n, a in inputs.items()]
        found = slope(*arrays, weights)
        return list(found) if len(inputs) > 1 else [found]

    got = both(*inputs.values(), weights, *along.values())[len(inputs) :]
    wants = [
        (b - a) / (2 * step) for a, b in zip(moved(-step), moved(step), strict=True)
    ]
    for found, want in zip(got, wants, strict=True):
        size = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6 * size)


def second(body: str, shape: tuple[int, ...], x: Any, opset: int = 21) -> Any:
    """The second derivative of `y` along ones."""
    made = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": {opset}]>
        m (double{list(shape)} x) => (double y) {{ {body} y = ReduceSum<keepdims=0>(o) }}"""
    )
    both = native(tw.jvp(tw.grad(made, "x"), "x"))
    return both(x, np.ones(shape))[1]


def test_a_magnitude_has_none_and_is_not_refused() -> None:
    found = second("a = Abs(x) o = Mul(a, a)", (3,), np.array([-1.0, 2.0, 0.0]))
    np.testing.assert_array_equal(found, [2.0, 2.0, 0.0])


def test_products_with_factors_that_are_zero() -> None:
    """a b c by a and b is c, whichever of them is zero: here by each and by all others."""
    x = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]])
    want = np.array([[5.0, 3.0, 2.0], [5.0, 5.0, 0.0], [6.0, 5.0, 3.0]])
    axes = "i = Constant<value_ints=[1]>()"
    found = second(f"{axes} o = ReduceProd(x, i)", (3, 3), x)
    np.testing.assert_allclose(found, want)
    # of 1, 2 and 3 factors
    behind = want + [[1.0, 1.0, 0.0]]
    axis = "i = Constant<value=int64 {1}>()"
    found = second(f"{axis} o = CumProd(x, i)", (3, 3), x, 26)
    np.testing.assert_allclose(found, behind)
    found = second(f"{axis} o = CumProd<reverse=1>(x, i)", (3, 3), x[:, ::-1], 26)
    np.testing.assert_allclose(found, behind[:, ::-1])


@pytest.mark.parametrize("extent", [0, 1, 2, 5])
def test_products_of_few_factors(extent: int) -> None:
    x = np.linspace(-1.0, 2.0, extent * 2).reshape(2, extent)
    axes = "i = Constant<value_ints=[1]>()"
    found = second(f"{axes} o = ReduceProd(x, i)", (2, extent), x)
    others = [
        [
            sum(np.prod(np.delete(row, [j, k])) for j in range(extent) if j != k)
            for k in range(extent)
        ]
        for row in x
    ]
    np.testing.assert_allclose(found, np.reshape(others, (2, extent)), atol=1e-12)


def test_a_gather_has_a_directional_derivative() -> None:
    """Of the adjoint of its adjoint, which adds up, that is again a gather."""
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        m (double[3] x) => (double[4] y) {
          i = Constant<value=int64[4] {0, 2, 2, -1}>()
          y = Gather(x, i)
        }"""
    )
    _, found = native(tw.jvp(made, "x"))(np.zeros(3), np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(found, [1.0, 3.0, 3.0, 3.0])


def test_the_total_of_a_triangle_compiles() -> None:
    """Its condition names reduced dimensions alone, and it has no others to cut."""
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        m (double[2, 2, 3] x, double[2, 2, 3] w) => (double y) {
          t = Trilu<upper=0>(x)
          p = Mul(t, w)
          y = ReduceSum<keepdims=0>(p)
        }"""
    )
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 2, 2, 3))
    np.testing.assert_allclose(native(made)(x, w), (np.tril(x) * w).sum())
