"""Written-out operators are recognized, and what only looks like them is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.base import events

rng = np.random.default_rng(2)


def layer_norm(square: str, axes: list[int], affine: bool) -> Any:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=axes),
        helper.make_node("Sub", ["x", "m"], ["d"]),
        helper.make_node("Pow", ["d", "two"], ["q"])
        if square == "Pow"
        else helper.make_node("Mul", ["d", "d"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["v"], axes=axes),
        helper.make_node("Add", ["v", "eps"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["s"]),
        helper.make_node("Div", ["d", "s"], ["n"]),
    ]
    if affine:
        nodes += [
            helper.make_node("Mul", ["n", "scale"], ["ns"]),
            helper.make_node("Add", ["ns", "bias"], ["y"]),
        ]
    weights = {
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "scale": rng.standard_normal(33).astype(np.float32),
        "bias": rng.standard_normal(33).astype(np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 33])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("square", ["Pow", "Mul"])
def test_layer_norm_written_out_is_one_kernel(square: str, affine: bool) -> None:
    model = layer_norm(square, [-1], affine)
    exe = tw.compile(model, cache=False)
    assert len(exe.model.kernels) == 1
    x = rng.standard_normal((2, 5, 33)).astype(np.float32)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(exe(x), expected, rtol=1e-4, atol=1e-5)


def test_another_axis_is_no_layer_norm() -> None:
    model = layer_norm("Pow", [1], False)
    with events.record() as log:
        exe = tw.compile(model, cache=False)
    fired = [
        e.fields["rule"] for e in log if e.kind == "rule" and e.fields["set"] == "graph"
    ]
    assert not [name for name in fired if name.startswith("layer-norm")]
    x = rng.standard_normal((2, 5, 33)).astype(np.float32)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(exe(x), expected, rtol=1e-4, atol=1e-5)
