"""Registering operators: versions, domains, users' own, decomposition."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from tilewright.base.errors import InputError
from tilewright.compute.build import map_
from tilewright.frontends.onnx import load
from tilewright.graph.interp import evaluate, run_natively
from tilewright.graph.ops import registry
from tilewright.graph.ops.registry import OpDef, lookup, register, registered


@pytest.fixture(autouse=True)
def own_definitions():
    registered()
    before = {k: list(v) for k, v in registry._definitions.items()}
    yield
    registry._definitions.clear()
    registry._definitions.update(before)


def same(call):
    return [(call.dtype(0), call.shape(0))]


def model(op_type, **attributes):
    node = helper.make_node(
        op_type, ["x"], ["y"], name="n", domain="com.acme", **attributes
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    return helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=opsets
    )


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_users_operator_runs_by_reference_and_natively():
    register(
        OpDef(
            "Square",
            same,
            domain="com.acme",
            compute=lambda call, inputs, outputs: [
                map_("square", outputs[0], lambda *i: inputs[0][i] * inputs[0][i])
            ],
            reference=lambda call, x: [x * x],
            flops=lambda call: call.size_out(0),
        )
    )
    graph = load(model("Square"))
    np.testing.assert_array_equal(evaluate(graph, {"x": X})["y"], X * X)
    np.testing.assert_array_equal(run_natively(graph.operations[0], [X])[0], X * X)


def test_a_definition_by_decomposition():
    def decompose(call, fragment):
        scale = fragment.constant(call.attr("scale"), call.dtype(0))
        return [fragment.op("Relu", fragment.op("Mul", call.value(0), scale))]

    register(OpDef("ScaledRelu", same, domain="com.acme", decompose=decompose))
    graph = load(model("ScaledRelu", scale=-2.0))
    assert [op.op_type for op in graph.operations] == ["Mul", "Relu"]
    assert graph.outputs[0].name == "y" and graph.operations[0].name == "n/Mul_0"
    np.testing.assert_array_equal(evaluate(graph, {"x": X})["y"], np.maximum(-2 * X, 0))


def test_versions_choose_the_definition():
    old, new = OpDef("V", same, "com.acme", 1, 4), OpDef("V", same, "com.acme", 5)
    register(old)
    register(new)
    found = [lookup("V", "com.acme", v) for v in (1, 4, 5, 9)]
    assert found == [old, old, new, new]
    assert lookup("V", "com.other", 1) is None
    assert lookup("Clip", "ai.onnx", 6) is not lookup("Clip", "", 13)


def test_two_definitions_of_one_version_are_refused():
    register(OpDef("V", same, "com.acme", 1))
    with pytest.raises(InputError, match="replace=True"):
        register(OpDef("V", same, "com.acme", 3))
    mine = register(OpDef("V", same, "com.acme", 3), replace=True)
    assert lookup("V", "com.acme", 3) is mine and lookup("V", "com.acme", 2) is not mine


def test_no_operator_of_onnx_is_defined_twice():
    seen = set()
    for d in registered():
        for version in range(d.since, (d.until or d.since) + 1):
            key = (d.domain, d.op_type, version)
            assert key not in seen, key
            seen.add(key)
