"""Convolutions alone, channels first as the model stores them: odd shapes of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.base import events
from tilewright.driver import text
from tilewright.frontends.onnx import load
from tilewright.testing.differential import check

# channels in, (height, width), channels out, window, attributes
CASES: dict[str, tuple[int, tuple[int, int], int, tuple[int, int], dict[str, Any]]] = {
    "channels in vectors": (24, (5, 7), 48, (3, 3), {"pads": [1, 1, 1, 1]}),
    "channels that are not whole vectors": (9, (6, 5), 51, (1, 1), {}),
    "a tile of two rows": (8, (7, 7), 64, (3, 3), {"pads": [1, 1, 1, 1], "dilations": [2, 2]}),
    "a row of taps": (16, (17, 17), 32, (1, 7), {"pads": [0, 3, 0, 3]}),
    "a column of taps": (16, (17, 17), 32, (7, 1), {"pads": [3, 0, 3, 0]}),
    "columns in vectors": (3, (9, 37), 5, (3, 3), {"pads": [1, 0, 2, 1]}),
    "strided": (8, (15, 19), 40, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "strided, one tap": (20, (14, 14), 40, (1, 1), {"strides": [2, 3]}),
    "patches": (3, (32, 32), 48, (8, 8), {"strides": [8, 8]}),
    "groups": (32, (9, 11), 64, (3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "narrow groups": (12, (9, 21), 12, (3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    "depthwise": (5, (13, 29), 5, (3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    "depthwise, strided": (6, (15, 35), 6, (5, 5), {"group": 6, "pads": [2, 2, 2, 2],
                                                    "strides": [2, 2]}),
    "depthwise, dilated": (4, (12, 40), 4, (3, 3), {"group": 4, "pads": [2, 2, 2, 2],
                                                    "dilations": [2, 2]}),
    "depthwise, stride three": (4, (16, 50), 4, (3, 3), {"group": 4, "strides": [3, 3],
                                                         "pads": [0, 1, 2, 0]}),
    "depthwise, several results": (4, (10, 18), 12, (3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "depthwise, smaller than a vector": (40, (7, 7), 40, (3, 3), {"group": 40,
                                                                  "pads": [1, 1, 1, 1]}),
    "one result": (16, (20, 23), 1, (3, 3), {"pads": [1, 1, 1, 1]}),
}  # fmt: skip


def model(name: str, batch: int, relu: bool, constant: bool = True) -> onnx.ModelProto:
    depth, size, width, window, attributes = CASES[name]
    rng = np.random.default_rng(7)
    shape = (width, depth // attributes.get("group", 1), *window)
    w = (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)
    b = rng.standard_normal(width).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c" if relu else "y"], **attributes)
    ]
    if relu:
        nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    given = {"x": (batch, depth, *size)} | (
        {} if constant else {"w": shape, "b": (width,)}
    )
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in given.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(a, n)
            for n, a in (("w", w), ("b", b))
            if constant
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


# each role of the channels
@pytest.mark.representatives(
    "channels in vectors", "strided", "groups", "depthwise, several results"
)
@pytest.mark.parametrize("case", CASES)
def test_a_convolution_alone_agrees_with_its_truth(case: str) -> None:
    depth, size = CASES[case][:2]
    for batch, relu, threads, options in (
        (1, True, (1, 2), {}),
        (2, False, (2,), {"mcpu": "x86-64-v3"}),
    ):
        graph = load(model(case, batch, relu).SerializeToString())
        x = (
            np.random.default_rng(1)
            .standard_normal((batch, depth, *size))
            .astype(np.float32)
        )
        with events.record() as log:
            assert not check(graph, {"x": x}, threads=threads, cache=True, **options)
        assert not [e for e in log if e.kind == "sketch-refused"]


@pytest.mark.sampled(2)  # all channels, and groups
@pytest.mark.parametrize("case", ["channels in vectors", "depthwise", "narrow groups"])
def test_weights_may_be_inputs(case: str) -> None:
    depth, size = CASES[case][:2]
    source = model(case, 1, True, constant=False)
    graph = load(source.SerializeToString())
    rng = np.random.default_rng(2)
    inputs = {
        v.name: rng.standard_normal(v.extents).astype(np.float32) for v in graph.inputs
    }
    assert inputs["x"].shape == (1, depth, *size)
    assert not check(graph, inputs, threads=(1, 2), cache=True)


@pytest.mark.parametrize(
    ("case", "transposed"),
    [("channels in vectors", True), ("columns in vectors", False)],
)
def test_results_leave_tiles_transposed_where_channels_make_better_vectors(
    case: str, transposed: bool
) -> None:
    kernel = text(model(case, 1, True).SerializeToString(), "kernel", mcpu="x86-64-v4")
    assert ("transpose(y" in kernel) == transposed
