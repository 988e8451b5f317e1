"""The float64 reference against ONNX's own, operator by operator."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from benchmarks import models

torch = pytest.importorskip("torch")
from benchmarks import reference  # noqa: E402

RNG = np.random.default_rng(7)
IMAGE = RNG.standard_normal((2, 4, 9, 8))
POOL = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("Conv", [IMAGE, array(6, 2, 3, 3), array(6)], {"group": 2, "pads": [1, 0, 2, 1]}),
    ("Conv", [IMAGE, array(5, 4, 3, 3)], {"strides": [2, 1], "dilations": [1, 2]}),
    ("MaxPool", [IMAGE], POOL),
    ("AveragePool", [IMAGE], POOL),
    ("AveragePool", [IMAGE], {**POOL, "count_include_pad": 1}),
    (
        "BatchNormalization",
        [IMAGE, array(4), array(4), array(4), array(4) ** 2 + 0.5],
        {},
    ),
    ("LayerNormalization", [array(2, 3, 5), array(5), array(5)], {"epsilon": 1e-3}),
    ("ConvTranspose", [IMAGE, array(4, 3, 2, 2), array(3)], {"strides": [2, 2]}),
    (
        "MaxPool",
        [IMAGE],
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    ("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("ReduceSum", [array(2, 3, 4), np.array([0])], {"keepdims": 0}),
    (
        "Slice",
        [
            array(5, 6),
            np.array([1, 0]),
            np.array([4, 6]),
            np.array([0, 1]),
            np.array([1, 2]),
        ],
        {},
    ),
    (
        "LSTM",
        [
            array(5, 2, 3),
            array(1, 16, 3),
            array(1, 16, 4),
            array(1, 32),
            np.empty(0),
            array(1, 2, 4),
            array(1, 2, 4),
        ],
        {"hidden_size": 4},
    ),
    ("Gemm", [array(3, 4), array(5, 4), array(5)], {"transB": 1, "alpha": 0.5}),
    ("Gemm", [array(4, 3), array(4, 5)], {"transA": 1}),
    ("Gather", [array(5, 3, 2), np.array([[1, 0], [2, -1]])], {"axis": 1}),
    ("Reshape", [array(2, 6), np.array([0, 3, -1])], {}),
    ("Unsqueeze", [array(3), np.array([0, -1])], {}),
    ("ReduceMean", [array(2, 3, 4), np.array([1, 2])], {"keepdims": 1}),
    ("Clip", [array(7), np.array(-0.5), np.array(0.5)], {}),
    ("Softmax", [array(2, 3, 4)], {"axis": 1}),
    ("Concat", [array(2, 3), array(2, 1)], {"axis": 1}),
    ("Transpose", [array(2, 3, 4)], {"perm": [2, 0, 1]}),
    ("Sum", [array(2, 3), array(2, 3), array(1, 3)], {}),
    ("Erf", [array(9)], {}),
    ("GlobalAveragePool", [IMAGE], {}),
]


def one_node(
    op: str, values: list[np.ndarray], attributes: dict[str, Any]
) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(values))]
    infos = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape
        )
        for n, v in zip(names, values)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    node = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph([node], "one", infos, [result])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )


@pytest.mark.parametrize(
    ("op", "values", "attributes"), CASES, ids=[case[0] for case in CASES]
)
def test_operator_agrees_with_onnx(
    op: str, values: list[np.ndarray], attributes: dict[str, Any]
):
    model = one_node(op, values, attributes)
    feeds = {f"x{i}": v for i, v in enumerate(values)}
    got = reference.evaluate(model, feeds)["y"]
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_unknown_operator_is_named():
    with pytest.raises(NotImplementedError, match=r"Det \(y\)"):
        reference.evaluate(one_node("Det", [array(3, 3)], {}), {"x0": array(3, 3)})


def test_reference_file_has_outputs_and_inner_tensors(folder):
    path = models.build("squeezenet", folder)
    target = reference.write("squeezenet", path)
    with np.load(target) as archive:
        assert archive["out.softmaxout_1"].dtype == np.float64
        assert sum(key.startswith("mid.") for key in archive.files) >= 5
    before = target.stat().st_mtime_ns
    assert reference.outputs("squeezenet", path)[0].shape == (1, 1000, 1, 1)
    assert target.stat().st_mtime_ns == before
