"""Tensors without elements, by operator and dimension, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def longs(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


IMAGE, MATRIX = (2, 3, 6, 6), (2, 3, 4)
# Operator: the first operand's shape, the dimensions that may be empty, the others, attributes.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...], Any]] = {
    "Conv": (IMAGE, (0,), (real(4, 3, 3, 3), real(4)), {"pads": [1] * 4}),
    "ConvTranspose": (IMAGE, (0,), (real(3, 4, 3, 3),), {}),
    "MaxPool": (IMAGE, (0,), (), {"kernel_shape": [2, 2]}),
    "AveragePool": (IMAGE, (0,), (), {"kernel_shape": [2, 2]}),
    "GlobalAveragePool": (IMAGE, (0,), (), {}),
    "BatchNormalization": (IMAGE, (0,), (*(real(3) for _ in range(3)), np.ones(3, np.float32)), {}),
    "MatMul": (MATRIX, (0, 1), (real(2, 4, 5)[0],), {}),
    "Gemm": ((3, 4), (0,), (real(4, 5),), {}),
    "Softmax": (MATRIX, (0, 1, 2), (), {"axis": -1}),
    "LayerNormalization": (MATRIX, (0, 1), (real(4), real(4)), {}),
    "ReduceSum": (MATRIX, (0, 1, 2), (longs(1),), {}),
    "ReduceMax": (MATRIX, (0, 2), (), {"axes": [1]}),
    "Relu": (MATRIX, (0, 1, 2), (), {}),
    "Erf": (MATRIX, (0, 1, 2), (), {}),
    "Add": (MATRIX, (0, 1), (real(4),), {}),
    "Transpose": (MATRIX, (0, 1, 2), (), {"perm": [2, 0, 1]}),
    "Concat": (MATRIX, (1,), (real(2, 5, 4),), {"axis": 1}),
    "Gather": (MATRIX, (1, 2), (longs(1, 0),), {"axis": 0}),
    "Slice": (MATRIX, (0, 1, 2), (longs(0), longs(2), longs(1)), {}),
    "Pad": (MATRIX, (0, 1, 2), (longs(0, 1, 0, 0, 1, 1),), {}),
    "CumSum": (MATRIX, (0, 1, 2), (np.array(1, np.int64),), {}),
    "Tile": (MATRIX, (0, 1, 2), (longs(1, 2, 1),), {}),
    "Unsqueeze": (MATRIX, (0, 1, 2), (longs(0),), {}),
}  # fmt: skip
USES = [(op, d) for op, (_, dims, *_) in CASES.items() for d in dims]


def model_of(op: str, dimension: int, known: bool) -> tuple[Any, dict[str, Any]]:
    """The model, and its inputs; known: the empty operand is a constant too."""
    shape, _, rest, attributes = CASES[op]
    x = np.zeros([0 if n == dimension else e for n, e in enumerate(shape)], np.float32)
    names = ["x", *(f"a{n}" for n in range(len(rest)))]
    arrays = dict(zip(names[1:], rest, strict=True)) | ({"x": x} if known else {})
    inputs = (
        []
        if known
        else [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    )
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "empty",
        inputs,
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=8
    ), {} if known else {"x": x}


@pytest.mark.parametrize("known", [False, True], ids=["input", "constant"])
@pytest.mark.parametrize(("op", "dimension"), USES)
def test_an_empty_operand_gives_what_onnx_runtime_gives(
    op: str, dimension: int, known: bool
) -> None:
    model, feeds = model_of(op, dimension, known)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    got = np.asarray(tw.compile(model, cache=False, threads=1)(feeds))
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("op", "dimension"), USES)
def test_the_interpreter_gives_what_onnx_runtime_gives(op: str, dimension: int) -> None:
    """The definition in NumPy, which judges random graphs, of an extent not known before."""
    model, feeds = model_of(op, dimension, known=False)
    model.graph.input[0].type.tensor_type.shape.dim[dimension].dim_param = "n"
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    (got,) = evaluate(load(model), feeds, fallback=OnnxFallback()).values()
    assert np.shape(got) == want.shape
    np.testing.assert_array_equal(got, want)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("op", ["GlobalAveragePool", "ReduceMean"])
def test_the_mean_of_nothing_is_no_number_without_a_warning(op: str) -> None:
    """In NumPy as in kernels."""
    axes = {"axes": [2]} if op == "ReduceMean" else {}
    node = helper.make_node(op, ["x"], ["y"], **axes)
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)]
        for n, s in (("x", [2, 3, 0]), ("y", [2, 3, 1]))
    ]
    opset = [helper.make_opsetid("", 17)]
    proto = helper.make_model(
        helper.make_graph([node], "g", *ends), opset_imports=opset, ir_version=8
    )
    x = np.empty((2, 3, 0), np.float32)
    exe = tw.compile(proto, threads=1, cache=False)
    again = evaluate(load(proto), {"x": x}, fallback=OnnxFallback())
    for y in (exe(x), again["y"]):
        assert y.dtype == np.float32 and y.shape == (2, 3, 1) and np.isnan(y).all()
