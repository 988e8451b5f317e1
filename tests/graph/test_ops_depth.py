"""DepthToSpace and SpaceToDepth run natively and undo one another."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.base.dtypes import float32
from tilewright.base.errors import ModelError
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp
from tilewright.graph.nodes import Operation, Value
from tilewright.runtime.model import HostFallbackStep


def model(op: str, shape: tuple[int, ...], **attributes: object) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("DepthToSpace", (2, 12, 3, 5), {"blocksize": 2}),
        ("DepthToSpace", (1, 18, 2, 1), {"blocksize": 3, "mode": "CRD"}),
        ("SpaceToDepth", (2, 3, 4, 6), {"blocksize": 2}),
    ],
)
def test_agrees_with_onnx(
    op: str, shape: tuple[int, ...], attributes: dict[str, object]
) -> None:
    m = model(op, shape, **attributes)
    exe = tw.compile(m, cache=False)
    assert not [s for s in exe.model.steps if isinstance(s, HostFallbackStep)]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(exe(x), ReferenceEvaluator(m).run(None, {"x": x})[0])


@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
def test_a_block_of_nothing_is_refused(op: str) -> None:
    with pytest.raises(ModelError, match="blocksize is 0"):
        tw.compile(model(op, (1, 4, 2, 2), blocksize=0), cache=False)


@pytest.mark.parametrize(
    ("name", "shape"), [("DepthToSpace", (1, 4, 2, 2)), ("SpaceToDepth", (1, 1, 4, 4))]
)
def test_a_tensor_of_unknown_shape_is_rearranged(name, shape):
    """As one of a Loop is; the interpreter is given what it holds."""
    whole, result = Value("x", float32), Value("y", float32)
    op = Operation(name, (whole,), (result,), {"blocksize": 2}, version=13)
    (found,) = interp.run_on(op, [np.ones(shape, np.float32)], OnnxFallback())
    assert (
        found.shape
        == {"DepthToSpace": (1, 1, 4, 4), "SpaceToDepth": (1, 4, 2, 2)}[name]
    )
