"""Operators of com.microsoft against ONNX Runtime, which defines them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate
from tilewright.graph.ops.registry import definition_of

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def check(
    op_type,
    inputs,
    constants=(),
    outputs=("y",),
    domain="com.microsoft",
    result=1,
    **attributes,
):
    """Interpreted, it gives what ONNX Runtime gives: the model, what it was fed, its results."""
    names = ["" if a is None else f"x{n}" for n, a in enumerate(inputs)]
    node = helper.make_node(op_type, names, list(outputs), domain=domain, **attributes)
    given = [n for n, a in enumerate(inputs) if a is not None and n not in constants]
    infos = [
        helper.make_tensor_value_info(
            names[n], helper.np_dtype_to_tensor_dtype(inputs[n].dtype), inputs[n].shape
        )
        for n in given
    ]
    out = [helper.make_tensor_value_info(n, result, None) for n in outputs if n]
    weights = [numpy_helper.from_array(inputs[n], names[n]) for n in constants]
    graph = helper.make_graph([node], "g", infos, out, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    feeds = {names[n]: inputs[n] for n in given}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = dict(zip([o.name for o in out], session.run(None, feeds), strict=True))
    ours = load(model)
    assert all(op.domain == "" and definition_of(op) for op in ours.operations)
    found = evaluate(ours, feeds, fallback=OnnxFallback())
    for name, expected in want.items():
        np.testing.assert_allclose(found[name], expected, 2e-4, 2e-5)
    return model, feeds, want


def test_activations():
    check("Gelu", [floats(3, 4)])
    check("FastGelu", [floats(3, 4), floats(4)])
    check("BiasGelu", [floats(3, 4), floats(4)])
    check("QuickGelu", [floats(3, 4)], alpha=1.5)


def test_normalizations():
    x, skip = floats(2, 3, 8), floats(2, 3, 8)
    check(
        "SkipLayerNormalization",
        [x, skip, floats(8), floats(8), floats(8)],
        epsilon=1e-5,
    )
    check(
        "SkipLayerNormalization", [x, skip, floats(8)], outputs=("y", "", "", "total")
    )
    check("SkipSimplifiedLayerNormalization", [x, skip, floats(8)], epsilon=1e-5)
    check(
        "SimplifiedLayerNormalization", [x, floats(8)], domain="", axis=-1, epsilon=1e-5
    )


def test_products():
    check(
        "FusedMatMul", [floats(2, 4, 3), floats(2, 5, 4)], transA=1, transB=1, alpha=0.5
    )


def test_quantized():
    a, b = (RNG.integers(0, 256, (3, 4)).astype(np.uint8) for _ in range(2))
    # Scales without halves among the results, which may be rounded either way.
    scale, zero = np.array(0.1, np.float32), np.array(120, np.uint8)
    operands = [a, scale, zero, b, scale, zero, np.array(0.2123, np.float32), zero]
    check("QLinearAdd", operands, result=TensorProto.UINT8)
