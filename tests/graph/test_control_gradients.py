"""Derivatives through Loop, Scan and If: against central differences."""

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.errors import UnsupportedError

HEAD = '<ir_version: 10, opset_import: ["": 21]> m '
LOOP = """(double[3] x, double[3] w) => (double loss) {
  n = Constant<value = int64 {TRIPS}>()
  c = Constant<value = bool {1}>()
  y, s = Loop(n, c, x) <body = b (int64 i, bool k, double[3] h)
    => (bool k2, double[3] h2, double[3] o) {
      k2 = Identity(k) p = Mul(h, w) h2 = Tanh(p) o = Mul(h2, h2) }>
  t = ReduceSum<keepdims = 0>(s) u = ReduceSum<keepdims = 0>(y) loss = Add(t, u) }"""
SCAN = """(double[3] x, double[5, 3] q, double[3] w) => (double loss) {
  y, s = Scan<num_scan_inputs = 1, body = b (double[3] h, double[3] e)
    => (double[3] h2, double[3] o) {
      p = Mul(h, w) r = Add(p, e) h2 = Tanh(r) o = Mul(h2, h2) }>(x, q)
  t = ReduceSum<keepdims = 0>(s) u = ReduceSum<keepdims = 0>(y) loss = Add(t, u) }"""
IF = """(double[3] x, double[3] w, bool c) => (double loss) {
  y, z = If(c) <
    then_branch = a () => (double[3] p, double[3] r) { p = Mul(x, w) r = Exp(p) },
    else_branch = b () => (double[3] q, double[3] x) { r = Tanh(x) q = Mul(r, x) }>
  s = Mul(y, z) loss = ReduceSum<keepdims = 0>(s) }"""
NESTED = """(double[3] x, double[3] w, bool c, bool d) => (double loss) {
  y = If(c) <
    then_branch = a () => (double[3] p) { p = If(d) <
      then_branch = e () => (double[3] f) { g = Mul(x, x) f = Mul(g, w) },
      else_branch = h () => (double[3] i) { i = Sin(w) }> },
    else_branch = b () => (double[3] q) { q = Neg(x) }>
  s = Mul(y, w) loss = ReduceSum<keepdims = 0>(s) }"""
MODELS = {
    "Loop": LOOP.replace("TRIPS", "4"),
    "Scan": SCAN,
    "If": IF,
    "nested If": NESTED,
}


def parsed(text):
    return onnx.parser.parse_model(HEAD + text)


def drawn(graph, conditions):
    rng = np.random.default_rng(4)
    rest = list(conditions)
    return [
        rng.uniform(-1, 1, v.extents) if v.dtype.is_float else np.array(rest.pop(0))
        for v in graph.inputs
    ]


def slope(run, arguments, n, step=1e-6):
    found = np.zeros_like(arguments[n])
    for i in np.ndindex(found.shape):
        ends = []
        for sign in (-1, 1):
            moved = [np.array(a) for a in arguments]
            moved[n][i] += sign * step
            ends.append(run(*moved))
        found[i] = (ends[1] - ends[0]) / (2 * step)
    return found


@pytest.mark.sampled(3)
@pytest.mark.covering(1)
@pytest.mark.filterwarnings("ignore:.* no native code")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("conditions", [(True, True), (True, False), (False, True)])
def test_differences(name, conditions):
    model = parsed(MODELS[name])
    graph = tw.grad(model)
    run, derived = tw.compile(model), tw.compile(graph)
    arguments = drawn(graph, conditions)
    found = derived(*arguments)
    floats = [n for n, a in enumerate(arguments) if a.dtype == np.float64]
    for n, got in zip(floats, found, strict=True):
        want = slope(run, arguments, n)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "text",
    [
        LOOP.replace("TRIPS", "400").replace("t = ReduceSum<keepdims = 0>(s) u", "loss")
        .replace(" loss = Add(t, u)", ""),
        """(double[3] x, int64 n) => (double loss) {
          y = Loop(n, , x) <body = b (int64 i, bool k, double[3] h)
            => (bool k2, double[3] h2) { k2 = Identity(k) h2 = Tanh(h) }>
          loss = ReduceSum<keepdims = 0>(y) }""",
    ],
    ids=["too long", "of unknown length"],
)  # fmt: skip
def test_a_loop_that_is_not_unrolled_is_named(text):
    with pytest.raises(UnsupportedError, match=r"Loop -> y.*Loop has no derivative"):
        tw.grad(parsed(text), ["x"])


def test_weights_in_a_loop_are_trained():
    model = parsed(
        MODELS["Loop"].replace("double", "float").replace(", float[3] w)", ")")
    )
    w = np.array([0.5, -0.25, 1], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    step = tw.compile_training_step(model, "loss", tw.optim.SGD(0.1))
    x = np.array([1, 2, -1], np.float32)
    losses = [step.step(x) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert not np.array_equal(step.parameters["w"], w)
