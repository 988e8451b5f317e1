"""Inputs that decide shapes on the way through other operators."""

import numpy as np
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.driver.dynamic import shape_inputs
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
