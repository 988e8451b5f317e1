"""Inputs that decide shapes on the way through other operators."""

import numpy as np
from onnx import TensorProto, helper, parser

import tilewright as tw
from tilewright.driver.deciding_inputs import shape_inputs
from tilewright.driver.dynamic import DynamicExecutable
from tilewright.frontends.onnx import load
from tilewright.runtime.model import HostFallbackStep


def model(nodes, inputs, outputs):
    infos = [
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in table.items()]
        for table in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "g", *infos)
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def test_a_value_computed_from_small_inputs_decides_a_shape():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "n"], ["t"]),
        helper.make_node("Cast", ["t"], ["u"], to=TensorProto.INT64),
        helper.make_node("Expand", ["x", "u"], ["y"]),
    ]
    f, i = TensorProto.FLOAT, TensorProto.INT64
    built = model(nodes, {"x": (f, [1, 3]), "n": (i, [2])}, {"y": (f, [None, None])})
    exe = tw.compile(built, threads=1, cache=False)
    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    for times in ([4, 1], [2, 1]):
        n = np.array(times)
        np.testing.assert_array_equal(exe(x, n), np.repeat(x, times[0], 0))
        steps = exe.specialized({"x": x, "n": n}).model.steps
        assert not any(isinstance(s, HostFallbackStep) for s in steps)


def test_large_inputs_are_no_keys():
    nodes = [
        helper.make_node("Greater", ["x", "limit"], ["mask"]),
        helper.make_node("NonZero", ["mask"], ["y"]),
    ]
    f, i = TensorProto.FLOAT, TensorProto.INT64
    inputs = {"x": (f, [100]), "limit": (f, [1])}

    assert shape_inputs(load(model(nodes, inputs, {"y": (i, [1, None])}))) == ()


def of_input(text):
    """A model in ONNX's own notation."""
    return parser.parse_model('<ir_version: 9, opset_import: ["" : 21]>' + text)


LOOP = """m (int64 n, float[3] x) => (float[3] y) {
  always = Constant <value = bool {1}> ()
  y = Loop (n, always, x) <body = b (int64 i, bool c, float[3] s) => (bool d, float[3] r) {
    d = Identity (c)
    r = Add (s, x)
  }>
}"""
BRANCH = """m (bool p, float[3] x) => (float[k] y) {
  y = If (p) <
    then_branch = a () => (float[3] r) { r = Add (x, x) },
    else_branch = b () => (float[6] q) { q = Concat <axis = 0> (x, x) }
  >
}"""
ROWS = """m (int64 n, float[3] x) => (float[k, 3] y) {
  always = Constant <value = bool {1}> ()
  y = Loop (n, always) <body = b (int64 i, bool c) => (bool d, float[3] r) {
    d = Identity (c)
    r = Add (x, x)
  }>
}"""
X = np.arange(3, dtype=np.float32)


def test_one_code_does_for_all_values_that_decide_loops_and_branches():
    loop = tw.compile(of_input(LOOP), threads=1, cache=False)
    assert isinstance(loop, tw.Executable)
    for n in (0, 1, 5, -3, 1000):
        (found,) = loop.run({"n": np.int64(n), "x": X})
        np.testing.assert_array_equal(found, X * (1 + max(n, 0)))
    branch = tw.compile(of_input(BRANCH), threads=1, cache=False)
    assert isinstance(branch, tw.Executable)
    for p, wanted in ((True, X + X), (False, np.tile(X, 2))):
        (found,) = branch.run({"p": np.bool_(p), "x": X})
        np.testing.assert_array_equal(found, wanted)


def test_rows_without_a_bound_are_compiled_for_each_number_of_them():
    rows = tw.compile(of_input(ROWS), threads=1, cache=False)
    assert isinstance(rows, DynamicExecutable)
    for n in (2, 1):
        (found,) = rows.run({"n": np.int64(n), "x": X})
        np.testing.assert_array_equal(found, np.tile(X + X, (n, 1)))
