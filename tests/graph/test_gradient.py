"""The Gradient operator against central differences in float64."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.base.errors import UnsupportedError
from tilewright.graph.interp import evaluate
from tilewright.graph.ops import registry
from tilewright.loops.nests import LoopNests, kernel
from tilewright.operators import OpDef, map_

RNG = np.random.default_rng(7)

# The text of a graph from x (and w) to y, and the shapes of both.
FORMULAS = {
    "broadcast": (
        "s = Add(x, w) \n p = Mul(s, x) \n d = Sub(p, w) \n y = Div(d, s)",
        (3, 4),
        (4,),
    ),
    "square": ("y = Mul(x, x)", (5,), ()),
    "power": ("y = Pow(x, w)", (2, 3), (1,)),
    "unary": (
        "a = Tanh(x) \n b = Sigmoid(a) \n c = Exp(b) \n d = Log(c) \n e = Sqrt(d) \n"
        " f = Reciprocal(e) \n g = Sin(f) \n h = Cos(g) \n i = Neg(h) \n y = Add(i, w)",
        (2, 3),
        (2, 3),
    ),
    "kinks": ("r = Relu(x) \n a = Abs(w) \n y = Mul(r, a)", (6,), (6,)),
    "product": ("p = MatMul(x, w) \n y = Mul(p, p)", (2, 1, 3, 4), (5, 4, 2)),
    "gemm": ("y = Gemm<alpha=0.5>(x, w)", (3, 4), (4, 2)),
    "gemm_turned": ("y = Gemm<transA=1, transB=1>(x, w)", (4, 3), (2, 4)),
    "sums": (
        "m = ReduceMean<axes=[1], keepdims=0>(x) \n t = Transpose(m) \n s = ReduceSum(t)"
        " \n y = Mul(s, w)",
        (2, 3, 4),
        (2,),
    ),
    "many": (
        "s = Sum(x, w, x) \n i = Identity(s) \n f = Flatten(i) \n y = Mul(f, f)",
        (2, 3),
        (3,),
    ),
}


def shape_text(shape):
    return f"double[{', '.join(map(str, shape))}]" if shape else "double"


def model(text, x, w, inputs="x, w"):
    lines = text.replace("\n ", "\n")
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 13, "ai.onnx.preview.training": 1]>
        g ({shape_text(x)} x, {shape_text(w)} w, {shape_text(x)} z)
          => (double[] y, double[] dx, double[] dw)
        {{
            {lines}
            dx, dw = ai.onnx.preview.training.Gradient<xs=["x", "w"], y="y">({inputs})
        }}"""
    )


def differences(f, arrays, n, step=1e-6):
    found = np.zeros_like(arrays[n])
    for i in np.ndindex(found.shape):
        moved = [[np.array(a) for a in arrays] for _ in range(2)]
        moved[0][n][i] -= step
        moved[1][n][i] += step
        low, high = (f(*a).sum() for a in moved)
        found[i] = (high - low) / (2 * step)
    return found


@pytest.mark.parametrize("name", FORMULAS)
def test_agrees_with_differences(name):
    text, x_shape, w_shape = FORMULAS[name]
    x, w = RNG.uniform(0.5, 2, x_shape), RNG.uniform(0.5, 2, w_shape)
    if name == "kinks":
        x, w = x - 1.2, w - 1.3
    exe = tw.compile(model(text, x_shape, w_shape), threads=1, cache=False)
    z = np.zeros_like(x)
    _, *found = exe(x, w, z)
    for n in range(2):
        want = differences(lambda x, w: exe(x, w, z)[0], [x, w], n)
        np.testing.assert_allclose(found[n], want, rtol=1e-6, atol=1e-8)


def test_at_another_point():
    text, x_shape, w_shape = FORMULAS["broadcast"]
    x, w, z = (RNG.uniform(0.5, 2, s) for s in (x_shape, w_shape, x_shape))
    there = tw.compile(model(text, x_shape, w_shape, "z, w"), threads=1, cache=False)
    here = tw.compile(model(text, x_shape, w_shape), threads=1, cache=False)
    for got, want in zip(there(x, w, z)[1:], here(z, w, z)[1:]):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_an_operator_without_a_rule_is_named(monkeypatch):
    registry.registered()  # loads them all
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))

    def compute(op, x, y):
        nests = LoopNests()
        return [kernel("same", x, y, nests.copy(y[0], lambda *i: x[0][i]), nests.notes)]

    registry.register(replace(own(None), compute=compute))
    right = model("e = com.acme.Same(x) \n y = Add(e, w)", (2,), (2,))
    right.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    with pytest.raises(
        UnsupportedError, match=r"com\.acme::Same is not defined by Comp"
    ):
        tw.compile(right)


def test_powers_of_zero_have_finite_slopes() -> None:
    """As PyTorch has them: 0 along the base where the exponent is 0, and along e at 0 ** e."""
    x, w = np.array([0.0, 0.0, 2.0, 0.0]), np.array([0.0, 2.0, 0.0, 1.0])
    _, dx, dw = tw.compile(model("y = Pow(x, w)", (4,), (4,)), threads=1)(x, w, x)
    np.testing.assert_array_equal(dx, [0, 0, 0, 1])
    np.testing.assert_allclose(dw, [0, 0, np.log(2), 0])


def test_the_mean_of_nothing() -> None:
    source = model("y = ReduceMean<axes=[1]>(x)", (2, 0), ())
    x, w = np.zeros((2, 0)), np.array(1.0)
    found = tw.compile(source, threads=1)(x, w, x)
    assert found[1].shape == (2, 0) and found[2] == 0


def own(gradient):
    """An operator of another package: the identity, with this gradient."""
    return OpDef(
        "Same",
        lambda op: [(op.dtype(0), op.shape(0))],
        domain="com.acme",
        compute=lambda op, x, y: [map_("same", y[0], lambda *i: x[0][i])],
        gradient=gradient,
    )


@pytest.mark.parametrize(
    ("gradient", "said"),
    [
        (
            lambda f, op, x, y, g: [f.op("Mul", g, f.constant(np.float32(1)))],
            r"gradient of node 'Same -> e' \(com.acme::Same\): node 'Gradient/Mul_\d+' \(Mul\): "
            r"its operands are float64, float32, not of the same type",
        ),
        (
            lambda f, op, x, y, g: [f.constant(np.zeros((2,), np.float32))],
            r"node 'Same -> e' \(com.acme::Same\): its gradient is float32, its input 'x' float64",
        ),
        (
            lambda f, op, x, y, g: [g[0]],
            r"node 'Same -> e' \(com.acme::Same\): its gradient fails: TypeError",
        ),
    ],
    ids=["operand", "result", "exception"],
)
def test_a_wrong_gradient_is_named(monkeypatch, gradient, said):
    registry.registered()  # loads them all
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))
    registry.register(own(gradient))
    wrong = model("e = com.acme.Same(x) \n y = Add(e, w)", (2,), (2,))
    wrong.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    with pytest.raises(tw.TilewrightError, match=said):
        tw.compile(wrong)


@pytest.mark.parametrize("name", ["CastLike", "Pow"])
def test_operators_that_mix_types_may_do_so_in_a_gradient(monkeypatch, name):
    """A float32 constant like x, or as the exponent of what flows, which are float64."""
    one = lambda f: f.constant(np.float32(1))  # noqa: E731
    rules = {
        "CastLike": lambda f, op, x, y, g: [
            f.op("Mul", g, f.op("CastLike", one(f), x[0]))
        ],
        "Pow": lambda f, op, x, y, g: [f.op("Pow", g, one(f))],
    }
    registry.registered()
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))
    registry.register(own(rules[name]))
    right = model("e = com.acme.Same(x) \n y = Mul(e, w)", (2,), (2,))
    right.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    x, w = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    _, dx, dw = tw.compile(right, threads=1)(x, w, x)
    np.testing.assert_array_equal((dx, dw), (w, x))


def test_a_scalar_known_to_the_interpreter_has_a_derivative():
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (bool[4] c, float s, float[4] x) => (float y) {
          w = Where(c, s, x) p = Mul(w, x) y = ReduceSum<keepdims=0>(p) }"""
    )
    chosen = np.array([True, False, True, False])
    x = np.array([1, 2, 3, 4], np.float32)
    graph = tw.grad(model, ["s"], loss="y")
    (found,) = evaluate(graph, {"c": chosen, "s": np.float32(5), "x": x}).values()
    assert found == 4
