"""Sequences that convolutions read as pictures are stored by rows and columns, if all agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.base import events

rng = np.random.default_rng(39)
CHANNELS = 24


def network(*sides: tuple[int, int], strides: int = 1, outputs: str = "") -> Any:
    """A product; its 48 rows as pictures of these sides, each convolved; their products with
    weights. The product itself, doubled, is a result, too."""
    weights = {
        "a": rng.standard_normal((8, CHANNELS)).astype(np.float32),
        "w": rng.standard_normal((CHANNELS, 1, 3, 3)).astype(np.float32),
        "flat": np.array([1, CHANNELS, -1]),
        "two": np.float32(2),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["m"]),
        helper.make_node("Mul", ["m", "two"], ["twice"]),
        helper.make_node("Transpose", ["m"], ["t"], perm=[0, 2, 1]),
    ]
    names = ["twice", *outputs]
    for height, width in sides:
        n = f"{height}x{width}"
        weights[f"s{n}"] = np.array([1, CHANNELS, height, width])
        nodes += [
            helper.make_node("Reshape", ["t", f"s{n}"], [f"r{n}"]),
            helper.make_node(
                "Conv",
                [f"r{n}", "w"],
                [f"c{n}"],
                pads=[1, 1, 1, 1],
                group=CHANNELS,
                strides=[strides, strides],
            ),
            helper.make_node("Reshape", [f"c{n}", "flat"], [f"f{n}"]),
            helper.make_node("Transpose", [f"f{n}"], [f"y{n}"], perm=[0, 2, 1]),
        ]
        names.append(f"y{n}")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 48, 8])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def halos(model: Any) -> list[Any]:
    """The halos of the compiled model, whose results are compared with the reference's."""
    with events.record() as log:
        exe = tw.compile(model, cache=False)
    x = rng.standard_normal((1, 48, 8)).astype(np.float32)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    got = exe.run({"x": x})
    for one, want in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-5)
    return [e.fields["pads"] for e in log if e.kind == "padded"]


@pytest.mark.parametrize(("sides", "strides"), [((6, 8), 1), ((4, 12), 2), ((8, 6), 1)])
def test_a_sequence_read_as_a_picture_gets_a_halo(
    sides: tuple[int, int], strides: int
) -> None:
    (pads,) = halos(network(sides, strides=strides))
    before = [a for a, _ in pads]
    assert before == [0, 1, 1, 0]


def test_pictures_of_other_widths_keep_the_sequence() -> None:
    """Rows of 8 are no rows of 12: one of the two would be read with divisions."""
    assert not halos(network((6, 8), (4, 12)))


def test_a_result_of_the_model_keeps_its_shape() -> None:
    assert not halos(network((6, 8), outputs="m"))


def test_a_reader_without_a_guard_keeps_the_sequence() -> None:
    """A pooling reads every second position, which is no dimension of its own."""
    model = network((6, 8))
    pool = helper.make_node("MaxPool", ["r6x8"], ["p"], kernel_shape=[2, 2])
    model.graph.node.append(pool)
    model.graph.output.append(
        helper.make_tensor_value_info("p", TensorProto.FLOAT, None)
    )
    assert not halos(model)
