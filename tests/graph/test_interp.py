"""The graph interpreter: references run in order, in the model's dtypes or in float64."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.base.errors import InputError
from tilewright.frontends.onnx.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate, run_natively

F32 = TensorProto.FLOAT


def graph_of(nodes, inputs, outputs, weights):
    def infos(table):
        return [helper.make_tensor_value_info(n, t, s) for n, (t, s) in table.items()]

    initializers = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), initializers)
    opset = [helper.make_opsetid("", 17)]
    return load(
        helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )


@pytest.fixture
def layer():
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 4), dtype=np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Softmax", ["p"], ["y"]),
    ]
    return graph_of(
        nodes, {"x": (F32, [2, 8])}, {"y": (F32, [2, 4]), "p": (F32, [2, 4])}, weights
    )


def test_float64_is_kept_all_the_way(layer):
    x = np.random.default_rng(1).standard_normal((2, 8), dtype=np.float32)
    y, p = evaluate(layer, {"x": x}, float64=True).values()
    [w] = layer.constants.values()
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert p.dtype == y.dtype == np.float64
    assert (p == exact).all()
    assert abs(y.sum(axis=1) - 1).max() < 1e-15


def test_declared_dtypes_otherwise(layer):
    y, p = evaluate(layer, {"x": np.ones((2, 8), np.float32)}).values()
    assert y.dtype == p.dtype == np.float32


def test_casts_between_floats_lose_nothing_in_float64():
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.DOUBLE),
        helper.make_node("Cast", ["h"], ["y"], to=F32),
        helper.make_node("Cast", ["x"], ["n"], to=TensorProto.INT32),
    ]
    outputs = {"y": (F32, [1]), "n": (TensorProto.INT32, [1])}
    g = graph_of(nodes, {"x": (F32, [1])}, outputs, {})
    x = np.array([1.0001], np.float32)
    y, n = evaluate(g, {"x": x}, float64=True).values()
    assert y == np.float64(x) and n.dtype == np.int32


def test_operators_without_a_reference_of_ours_and_subgraphs():
    def branch(name, op):
        node = helper.make_node(op, ["x"], [name])
        return helper.make_graph([node], name, [], [onnx.ValueInfoProto(name=name)])

    nodes = [
        helper.make_node(
            "If",
            ["c"],
            ["y"],
            then_branch=branch("a", "Neg"),
            else_branch=branch("b", "Abs"),
        )
    ]
    inputs = {"c": (TensorProto.BOOL, []), "x": (F32, [2])}
    g = graph_of(nodes, inputs, {"y": (F32, [2])}, {})
    x = np.array([-1.0, 2.0], np.float32)
    for c, expected in ((True, -x), (False, abs(x))):
        found = evaluate(
            g, {"c": np.array(c), "x": x}, float64=True, fallback=OnnxFallback()
        )
        assert (found["y"] == expected).all()


def test_wrong_names(layer):
    with pytest.raises(InputError, match="input 'x' is missing"):
        evaluate(layer, {})


def test_float64_of_an_operator_whose_schema_has_none():
    """Where its operand is of unknown rank, ONNX's own inference is asked for its type."""
    unknown = onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=1))
    x = onnx.ValueInfoProto(name="x", type=unknown)
    node = helper.make_node("Celu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 21)]
    model = load(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    given = {"x": np.array([-1, 2], np.float32)}
    found = evaluate(model, given, float64=True, fallback=OnnxFallback())["y"]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [np.expm1(-1), 2])


def test_a_concatenation_of_nothing_has_a_result():
    nodes = [helper.make_node("Concat", ["a", "b"], ["y"], axis=1)]
    empty = (F32, [2, 0])
    graph = graph_of(nodes, {"a": empty, "b": empty}, {"y": empty}, {})
    nothing = np.zeros((2, 0), np.float32)
    [y] = run_natively(graph.operations[0], [nothing, nothing])
    assert y.shape == (2, 0)
