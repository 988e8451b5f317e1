"""Training with products of bfloat16 or float16: what is rounded and what is not."""

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.driver import training
from tilewright.frontends.onnx.load import load
from tilewright.graph.ops.matmul import MIXED
from tilewright.graph.rules.mixed_precision import with_rounded_products

RNG = np.random.default_rng(6)


def model(text, **weights):
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22]> m {text}')
    for name, a in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(a, name))
    return made


def drawn(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


LOWER = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
by_precision = pytest.mark.parametrize("precision", LOWER)


def rounded(a, precision="bfloat16"):
    return a.astype(LOWER[precision]).astype(np.float64)


@by_precision
def test_operands_are_rounded_and_sums_and_parameters_are_not(precision):
    """One product and the mean of its squares: by hand. The scale of float16 is exact."""
    w, x = drawn(40, 3), drawn(6, 40)
    source = model("(float[6, 40] x) => (float[6, 3] y) { y = MatMul(x, w) }", w=w)
    scale = {"loss_scale": tw.optim.LossScale(256)} if precision == "float16" else {}
    step = tw.compile_training_step(
        source, "mean_squared_error", tw.optim.SGD(0.5), precision=precision, **scale
    )
    target = drawn(6, 3)
    y = rounded(x, precision) @ rounded(w, precision)
    loss = step.step(x, target)
    assert loss == pytest.approx(np.mean((y - target) ** 2), rel=1e-6)
    flow = (2 * (y - target) / y.size).astype(np.float32)
    found = step.parameters["w"]
    assert found.dtype == np.float32
    by = 256 if scale else 1
    flow = rounded(by * flow, precision) / by
    wanted = w - 0.5 * (rounded(x, precision).T @ flow)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


PRODUCTS = {
    "MatMul": "(float[2, 3, 4] a, float[4, 5] b) => (float[2, 3, 5] y) { y = MatMul(a, b) }",
    "Gemm": "(float[4, 3] a, float[5, 4] b, float[5] c) => (float[3, 5] y) "
    "{ y = Gemm<transA = 1, transB = 1, alpha = 0.5, beta = 2.0>(a, b, c) }",
    "Conv": "(float[1, 2, 5, 5] a, float[3, 2, 3, 3] b, float[3] c) => (float[1, 3, 3, 3] y) "
    "{ y = Conv(a, b, c) }",
    "ConvTranspose": "(float[1, 2, 3, 3] a, float[2, 3, 3, 3] b) => (float[1, 3, 5, 5] y) "
    "{ y = ConvTranspose(a, b) }",
}


@by_precision
@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("name", PRODUCTS)
def test_each_product_is_that_of_rounded_operands(name, pairs, precision):
    graph = load(model(PRODUCTS[name]))
    feeds = [drawn(*v.extents) for v in graph.inputs]
    lower = [
        a if v.name == "c" else rounded(a, precision).astype(np.float32)
        for v, a in zip(graph.inputs, feeds, strict=True)
    ]
    made = with_rounded_products(graph, precision, pairs)
    mixed = any(op.op_type == MIXED for op in made.operations)
    assert mixed == (pairs and not name.startswith("Conv"))
    got = tw.compile(made)(*feeds)
    np.testing.assert_allclose(got, tw.compile(graph)(*lower), rtol=1e-5, atol=1e-6)
    assert not np.allclose(got, tw.compile(graph)(*feeds), rtol=1e-5, atol=1e-6)


class Chosen(Exception):
    """How products are made."""


@pytest.mark.parametrize(
    ("mcpu", "precision", "pairs"),
    [
        ("znver4", "bfloat16", True),
        ("znver4", "float16", False),
        ("x86-64-v3", "bfloat16", False),
    ],
)
def test_operands_are_held_as_the_processor_multiplies_them(
    monkeypatch, mcpu, precision, pairs
):
    def made(graph, precision, pairs):
        raise Chosen(pairs)

    monkeypatch.setattr(training, "with_rounded_products", made)
    source = model(
        "(float[6, 40] x) => (float[6, 3] y) { y = MatMul(x, w) }", w=drawn(40, 3)
    )
    with pytest.raises(Chosen) as chosen:
        tw.compile_training_step(
            source, "mean_squared_error", precision=precision, mcpu=mcpu
        )
    assert chosen.value.args == (pairs,)


def test_a_number_beyond_float16_is_no_trouble():
    w = np.full((4, 2), 1e30, np.float32)
    source = model("(float[3, 4] x) => (float[3, 2] y) { y = MatMul(x, w) }", w=w)
    step = tw.compile_training_step(
        source, "mean_squared_error", tw.optim.SGD(1e-3), precision="bfloat16"
    )
    x = np.full((3, 4), 1e-30, np.float32)
    assert step.step(x, np.zeros((3, 2), np.float32)) == pytest.approx(16, rel=0.05)


LSTM = (
    "(float[3, 1, 4] x) => (float[3, 1, 1, 2] y) { y = LSTM<hidden_size = 2>(x, w, r) }"
)
REFUSED = {
    "eight bits of fraction on a GPU": (
        model("(float[3, 4] x) => (float[3, 2] y) { y = MatMul(x, w) }", w=drawn(4, 2)),
        {"precision": "tf32", "target": "cuda"}, UnsupportedError, "precision='tf32'",
    ),
    "exact": (
        model("(float[3, 4] x) => (float[3, 2] y) { y = MatMul(x, w) }", w=drawn(4, 2)),
        {"math": "exact"}, InputError, "exact",
    ),
    "a recurrence": (
        model(LSTM, w=drawn(1, 8, 4), r=drawn(1, 8, 2)), {}, UnsupportedError,
        "LSTMSteps multiplies internally",
    ),
    "a convolution of moved taps": (
        model(
            "(float[1, 2, 5, 5] x, float[1, 18, 3, 3] o) => (float[1, 3, 3, 3] y) "
            "{ y = DeformConv<kernel_shape = [3, 3]>(x, w, o) }",
            w=drawn(3, 2, 3, 3),
        ),
        {}, UnsupportedError, "DeformConv multiplies internally",
    ),
    "doubles": (
        model("(double[3, 4] x) => (double[3, 2] y) { y = MatMul(x, w) }",
              w=drawn(4, 2, dtype=np.float64)),
        {}, UnsupportedError, "MatMul is of float64, not float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_by_name(name):
    source, options, error, said = REFUSED[name]
    with pytest.raises(error, match=said):
        tw.compile_training_step(
            source, "mean_squared_error", **{"precision": "bfloat16", **options}
        )
