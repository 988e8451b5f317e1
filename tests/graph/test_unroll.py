"""Loop and Scan with a known number of iterations become plain operators."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graph.one_operator import run
from tilewright.frontends.onnx.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.specialize import specialize
from tilewright.graph.verify import verify

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, kind=F32, shape=(2,)):
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes, inputs, outputs, weights=()):
    constants = [
        numpy_helper.from_array(np.asarray(a), n) for n, a in dict(weights).items()
    ]
    graph = helper.make_graph(
        nodes, "g", inputs, [onnx.ValueInfoProto(name=n) for n in outputs]
    )
    graph.initializer.extend(constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )


def scan_model(steps, **attributes):
    """Running sums of x1 that start from x0, and their squares."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "item"], ["next"]),
            helper.make_node("Mul", ["next", "next"], ["square"]),
        ],
        "body",
        [info("sum"), info("item")],
        [info("next"), info("square")],
    )
    node = helper.make_node(
        "Scan", ["x0", "x1"], ["y0", "y1"], body=body, num_scan_inputs=1, **attributes
    )
    return model_of([node], [info("x0"), info("x1", shape=(steps, 2))], ["y0", "y1"])


@pytest.mark.parametrize("backwards", [0, 1])
def test_scan(backwards):
    rng = np.random.default_rng(0)
    start = rng.standard_normal(2).astype(np.float32)
    x = rng.standard_normal((5, 2)).astype(np.float32)
    directions = {
        "scan_input_directions": [backwards],
        "scan_output_directions": [backwards],
    }
    model = scan_model(5, scan_output_axes=[1], **directions)
    last, squares = run(model, [start, x])
    sums = start + np.cumsum(x[::-1] if backwards else x, 0)
    np.testing.assert_allclose(last, sums[-1], rtol=1e-5)
    expected = np.square(sums[::-1] if backwards else sums).T
    np.testing.assert_allclose(squares, expected, rtol=1e-5)


def test_the_copies_have_names_of_their_own():
    graph = specialize(load(scan_model(6)), fallback=OnnxFallback())
    assert not any(op.subgraphs for op in graph.operations)
    verify(graph)


def test_a_long_scan_stays_a_loop():
    graph = specialize(load(scan_model(500)), fallback=OnnxFallback())
    assert [op.op_type for op in graph.operations] == ["Scan"]


def loop_model(condition):
    """x0 doubled per iteration, at most x1 times, while `condition` holds."""
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "v"], ["next"]), condition],
        "body",
        [info("n", I64, ()), info("going", BOOL, ()), info("v")],
        [info("again", BOOL, ()), info("next"), info("next")],
    )
    node = helper.make_node("Loop", ["x1", "", "x0"], ["y0", "y1"], body=body)
    inputs = [info("x0"), info("x1", I64, ())]
    return model_of([node], inputs, ["y0", "y1"], {"limit": np.array(3)})


@pytest.mark.parametrize("trips, expected", [(2, 2), (10, 4)])
def test_loop_with_a_count_and_a_condition(trips, expected):
    condition = helper.make_node("Less", ["n", "limit"], ["again"])
    x = np.array([1, -2], np.float32)
    last, every = run(loop_model(condition), [x, np.array(trips)])
    np.testing.assert_array_equal(last, x * 2**expected)
    np.testing.assert_array_equal(every, [x * 2 ** (k + 1) for k in range(expected)])
