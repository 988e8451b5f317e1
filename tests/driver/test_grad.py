"""tw.grad and tw.value_and_grad: derivatives of models as graphs."""

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.errors import InputError, UnsupportedError


def model(body, given="float[3] x, float[3] w", result="float y"):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 22]> g ({given}) => ({result}) {{ {body} }}'
    )


PRODUCT = "p = Mul(x, w) q = Mul(p, x) y = ReduceSum<keepdims=0>(q)"
X, W = np.array([1, -2, 3], np.float32), np.array([4, 5, 6], np.float32)


def test_the_derivatives_are_a_graph():
    graph = tw.grad(model(PRODUCT))
    assert [v.name for v in graph.outputs] == ["grad.x", "grad.w"]
    dx, dw = tw.compile(graph, threads=1)(X, W)
    np.testing.assert_allclose(dx, 2 * X * W)
    np.testing.assert_allclose(dw, X * X)


def test_the_value_comes_first():
    y, dw = tw.compile(tw.value_and_grad(model(PRODUCT), "w"), threads=1)(X, W)
    np.testing.assert_allclose(y, (X * X * W).sum())
    np.testing.assert_allclose(dw, X * X)


def test_a_constant_becomes_an_input():
    body = (
        "c = Constant<value=float[3] {2.0, 3.0, 4.0}>() p = Mul(x, c) "
        "y = ReduceSum<keepdims=0>(p)"
    )
    graph = tw.grad(model(body, "float[3] x"), ["c"])
    assert [v.name for v in graph.inputs] == ["x", "c"]
    np.testing.assert_array_equal(tw.compile(graph, threads=1)(X, W), X)


def test_one_of_several_outputs():
    source = model(
        PRODUCT + " z = ReduceMean<keepdims=0>(w)", result="float y, float z"
    )
    with pytest.raises(InputError, match=r"the model has the outputs y(,| and) z"):
        tw.grad(source)
    dw = tw.compile(tw.grad(source, "w", loss="z"), threads=1)(X, W)
    np.testing.assert_allclose(dw, np.full(3, 1 / 3), rtol=1e-6)
    y, z, _ = tw.compile(tw.value_and_grad(source, "w", loss="z"), threads=1)(X, W)
    np.testing.assert_allclose((y, z), ((X * X * W).sum(), 5))


def test_a_symbolic_dimension():
    source = model("y = ReduceMean<keepdims=0>(x)", "float[N] x")
    with pytest.raises(UnsupportedError, match="a derivative needs known shapes"):
        tw.grad(source)
    dx = tw.compile(tw.grad(source, dims={"N": 4}), threads=1)(np.ones(4, np.float32))
    np.testing.assert_array_equal(dx, np.full(4, 0.25))


@pytest.mark.parametrize(
    "body", ["s = Mul(x, x) y = Mul(s, x)", 'y = Einsum<equation=",,->">(x, x, x)']
)
def test_the_second_derivative(body):
    source = model(body, "double x", "double y")
    again = tw.compile(tw.grad(tw.grad(source)), threads=1)
    np.testing.assert_allclose(again(np.array(5.0)), 30)


def test_the_second_derivative_through_derived_adjoints():
    source = model("g = Elu(x) s = Mul(g, g) y = Mul(s, x)", "double x", "double y")
    again = tw.compile(tw.grad(tw.grad(source)), threads=1)
    for x in (0.7, -0.4):
        e = np.exp(x)
        want = 6 * x if x > 0 else 4 * (e - 1) * e + x * (4 * e * e - 2 * e)
        np.testing.assert_allclose(again(np.array(x)), want, rtol=1e-12)


@pytest.mark.parametrize(
    ("body", "given", "result", "by", "said"),
    [
        ("y = Mul(x, w)", None, "float[3] y", None, r"the loss y: float32\[3\] is not a scalar"),
        ("y = ArgMax<axis=0,keepdims=0>(x)", None, "int64 y", None, "is not a scalar of floats"),
        (PRODUCT, None, "float y", ["v"], "the model has no input 'v'.*it has w, x"),
        (
            "c = Cast<to=1>(i) " + PRODUCT,
            "float[3] x, float[3] w, int64 i",
            "float y",
            ["i"],
            "has no derivatives: its elements are not floats",
        ),
        (
            "i = ArgMax<axis=0>(w) g = Gather(x, i) y = ReduceSum<keepdims=0>(g)",
            None,
            "float y",
            ["w"],
            r"'w' does not reach the loss 'y': only through integers, at node '.*' \(ArgMax\)",
        ),
        (
            "y = ReduceSum<keepdims=0>(x)",
            None,
            "float y",
            ["x", "w"],
            "'w' does not reach the loss 'y': by no operator",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_differentiated_is_said(body, given, result, by, said):
    source = model(body, given or "float[3] x, float[3] w", result)
    with pytest.raises(InputError, match=said):
        tw.grad(source, by)


def test_an_operator_without_a_derivative_is_named():
    with pytest.raises(UnsupportedError, match=r"\(Floor\): Floor has no derivative"):
        tw.grad(model("f = Floor(x) y = ReduceSum<keepdims=0>(f)", "float[3] x"))


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ("h = Gelu(x)", "float16[4, 6] x"),
        ("h = LayerNormalization(x, w)", "float16[4, 6] x, float16[6] w"),
        ("h = MaxPool<kernel_shape=[2,2]>(x)", "float16[1, 2, 5, 5] x"),
        (
            "i = Constant<value=int64[3] {0, 0, 2}>() h = Gather(x, i)",
            "float16[4, 6] x",
        ),
    ],
    ids=["gelu", "layer-norm", "pool", "gather"],
)
def test_float16_rounds_but_a_few_times(body, given):
    """Sums are in float32: the result is within two roundings of that in float64."""
    text = f"{body} s = Mul(h, h) y = ReduceSum<keepdims=0>(s)"
    narrow = tw.compile(tw.grad(model(text, given, "float16 y")), threads=1)
    wide_given = given.replace("float16", "double")
    wide = tw.compile(tw.grad(model(text, wide_given, "double y")), threads=1)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape).astype(np.float16) for t in narrow.inputs]
    got = narrow(*arrays)
    want = wide(*(a.astype(np.float64) for a in arrays))
    pairs = zip(
        got if isinstance(got, tuple) else (got,),
        want if isinstance(want, tuple) else (want,),
    )
    for g, w in pairs:
        assert g.dtype == np.float16
        np.testing.assert_allclose(g, w, rtol=2e-3, atol=2e-3)
