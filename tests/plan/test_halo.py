"""Halos: padded convolutions read plain memory, everything else still sees the tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.base.errors import ExecutionError
from tilewright.compute.interp import run
from tilewright.expr.nodes import Buffer, const
from tilewright.plan.passes.halo import _border, _Halo

rng = np.random.default_rng(1)


def network(pool: str, pads: list[int], stride: int) -> Any:
    """conv 1x1 -> relu -> {padded conv 3x3, pool, add}: one tensor with three kinds of readers."""
    weights = {
        "w1": rng.standard_normal((8, 3, 1, 1)).astype(np.float32),
        "w2": rng.standard_normal((8, 8, 3, 3)).astype(np.float32) * 0.1,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"]),
        helper.make_node("Relu", ["c1"], ["r"]),
        helper.make_node(
            "Conv", ["r", "w2"], ["c2"], pads=pads, strides=[stride, stride]
        ),
        helper.make_node(pool, ["r"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["r"], ["s"]),
    ]
    outputs = ["c2", "p", "s"]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 7, 9])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 1, 2, 0], [1, 2, 1, 0]])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_all_readers_of_a_padded_tensor_agree(
    pool: str, pads: list[int], stride: int
) -> None:
    model = network(pool, pads, stride)
    with events.record() as log:
        exe = tw.compile(model, cache=False)
    assert [e for e in log if e.kind == "padded"]
    assert not [e for e in log if e.kind == "sketch-refused"]
    x = rng.standard_normal((1, 3, 7, 9)).astype(np.float32)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    for _ in range(2):
        for got, want in zip(exe(x), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_tensor_that_leaves_the_model_has_no_halo() -> None:
    model = network("MaxPool", [1, 1, 1, 1], 1)
    model.graph.output.append(
        helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    )
    with events.record() as log:
        tw.compile(model, cache=False)
    assert not [e for e in log if e.kind == "padded"]


@pytest.mark.parametrize("place", [7, -8])
def test_a_tensor_in_which_places_are_looked_up_has_no_halo(place: int) -> None:
    """A place beyond the tensor would be in the border: it is an error, and not a zero."""
    model = network("MaxPool", [1, 1, 1, 1], 1)
    graph = model.graph
    graph.node.append(helper.make_node("Gather", ["r", "i"], ["g"], axis=2))
    graph.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, [2]))
    graph.output.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, None))
    exe = tw.compile(model, cache=False)
    x = rng.standard_normal((1, 3, 7, 9)).astype(np.float32)
    *_, found = exe(x, np.array([6, -7]))
    assert found.shape == (1, 8, 2, 9)
    with pytest.raises(ExecutionError):
        exe(x, np.array([0, place]))


def test_bytes_have_a_halo_of_their_zero_point() -> None:
    x = rng.standard_normal((1, 8, 9, 7)).astype(np.float32)
    weights = rng.integers(-128, 128, (20, 8, 3, 3)).astype(np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("ConvInteger", ["q", "w", "z"], ["y"], pads=[1, 1, 2, 1]),
        helper.make_node(
            "MaxPool", ["q"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
    ]
    given = {"s": np.float32(1 / 32), "z": np.uint8(99), "w": weights}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [
            helper.make_tensor_value_info("y", TensorProto.INT32, None),
            helper.make_tensor_value_info("p", TensorProto.UINT8, None),
        ],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in given.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9
    )
    with events.record() as log:
        exe = tw.compile(model, cache=False)
    assert [e.fields["pads"] for e in log if e.kind == "padded"]
    q = np.clip(np.rint(x * 32) + 99, 0, 255).astype(np.uint8)
    wide = np.pad(q.astype(np.int32) - 99, ((0, 0), (0, 0), (1, 2), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    want = np.einsum("nchwij,mcij->nmhw", windows, weights.astype(np.int32))
    around = np.pad(q, ((0, 0), (0, 0), (1, 1), (1, 1)))
    most = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (2, 3)).max((4, 5))
    for got, expected in zip(exe(x), (want, most), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("pads", "parts"), [
    (((0, 0), (1, 1), (2, 2)), 2),
    (((1, 1), (0, 2), (2, 1)), 4),
    (((0, 0), (0, 3), (0, 0)), 1),
])  # fmt: skip
def test_a_border_is_written_once_and_equal_sides_by_one_computation(
    pads: tuple[tuple[int, int], ...], parts: int
) -> None:
    small = Buffer("small", (2, 4, 3), float32)
    shape = tuple(n + sum(p) for n, p in zip(small.shape, pads, strict=True))
    padded_ = Buffer("small", shape, float32)
    for empty, count in ((False, parts), (True, 2 * len(pads))):
        halo = _Halo(pads, const(7.0, float32))
        group = _border(small, padded_, halo, empty)
        assert len(group.computations) == count
        written = np.zeros(shape, np.float32)
        for c in group.computations:
            alone = np.zeros(shape, np.float32)
            run([c], {padded_: alone})
            assert np.count_nonzero(alone) == math.prod(d.extent for d in c.dims)
            written += alone
        want = np.pad(np.zeros(small.shape), pads, constant_values=7)
        np.testing.assert_array_equal(written, want)
