"""Operators of older opsets that are written beside newer ones: they compute the same."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import UnsupportedError
from tilewright.frontends.onnx.export import to_onnx
from tilewright.frontends.onnx.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Operation, Value

RNG = np.random.default_rng(4)
DATA = RNG.standard_normal((2, 3, 4, 4)).astype(np.float32)
THIRDS = np.full(3, 0.5, np.float32)
SCALES = np.array([1, 1, 2, 3], np.float32)

# Name -> its opset, the nodes that make y of x, and constants.
OLD = {
    "Clip": (6, "y = Clip<min = -0.5, max = 0.6>(x)", {}),
    "Clip from below": (6, "y = Clip<min = -0.5>(x)", {}),
    "Clip from above": (6, "y = Clip<max = 0.5>(x)", {}),
    "Clip to the greatest": (6, "z = Div(x, o) y = Clip(z)", {"o": np.zeros(1, np.float32)}),
    "Pad": (9, "y = Pad<pads = [0, 0, 1, 2, 0, 0, 0, 1], value = 0.5>(x)", {}),
    "Pad with zeros": (9, "y = Pad<pads = [0, 0, 1, 2, 0, 0, 0, 1]>(x)", {}),
    "Pad by reflection": (
        9, 'y = Pad<pads = [0, 0, 1, 2, 0, 0, 0, 1], mode = "reflect">(x)', {},
    ),
    "Pad of opset 1": (1, "y = Pad<paddings = [0, 0, 1, 2, 0, 0, 0, 1], value = 0.5>(x)", {}),
    "Slice": (9, "y = Slice<starts = [1, 0], ends = [3, -1], axes = [3, 2]>(x)", {}),
    "Slice of the first axes": (9, "y = Slice<starts = [0, 1], ends = [1, 3]>(x)", {}),
    "TopK": (9, "y, i = TopK<k = 2, axis = 3>(x)", {}),
    "Dropout": (9, "y = Dropout<ratio = 0.3>(x)", {}),
    "Dropout of opset 10": (10, "y = Dropout(x)", {}),
    "Upsample": (9, 'y = Upsample<mode = "nearest">(x, s)', {"s": SCALES}),
    "Upsample by lines": (9, 'y = Upsample<mode = "linear">(x, s)', {"s": SCALES}),
    "Upsample of opset 7": (7, "y = Upsample<scales = [1.0, 1.0, 1.5, 2.0]>(x)", {}),
    "Resize": (10, 'y = Resize<mode = "nearest">(x, s)', {"s": SCALES / 2 + 0.5}),
    "Resize by lines": (10, 'y = Resize<mode = "linear">(x, s)', {"s": SCALES}),
    "BatchNormalization": (
        8, "y = BatchNormalization<spatial = 1>(x, a, a, a, a)", {"a": THIRDS},
    ),
    "Scatter": (
        9, "y = Scatter<axis = 1>(x, i, u)",
        {"i": np.ones((1, 1, 2, 2), np.int64), "u": np.ones((1, 1, 2, 2), np.float32)},
    ),
    "Softmax of the last axis": (9, "y = Softmax<axis = 3>(x)", {}),
    "Softmax of channels": (
        9, "z = GlobalAveragePool(x) y = Softmax(z)", {},
    ),
    "Softmax of one number": (
        9, "z = GlobalAveragePool(x) y = Softmax<axis = 2>(z)", {},
    ),
    "ReduceSum": (9, "y = ReduceSum<axes = [1], keepdims = 0>(x)", {}),
}  # fmt: skip

# An operator that is new in an opset.
NEW = {10: "Mod", 11: "CumSum", 12: "Celu", 13: "Sign", 14: "HardSwish", 20: "Gelu"}


def model(opset, body, constants):
    text = f'<ir_version: 8, opset_import: ["": {opset}]> m (float[2, 3, 4, 4] x) => (float y)'
    made = onnx.parser.parse_model(f"{text} {{ {body} }}")
    for name, array in constants.items():
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


def beside(graph, opset):
    """The graph with another result by an operator of this opset."""
    (x,) = graph.inputs
    new = Value("new", float32, x.shape)
    axis = Value("axis", int64, ())
    operands = {"Mod": (x, x), "CumSum": (x, axis)}.get(NEW[opset], (x,))
    attributes = {"fmod": 1} if NEW[opset] == "Mod" else {}
    op = Operation(NEW[opset], operands, (new,), attributes, version=opset)
    more = {axis: np.array(1)} if axis in operands else {}
    return replace(
        graph,
        operations=(*graph.operations, op),
        outputs=(*graph.outputs, new),
        constants={**graph.constants, **more},
    )


@pytest.mark.parametrize("opset", NEW)
@pytest.mark.parametrize("name", OLD)
def test_an_old_operator_beside_a_new_one(name, opset):
    fallback = OnnxFallback()
    graph = load(model(*OLD[name]), standard=True)
    written = to_onnx(beside(graph, opset))
    onnx.checker.check_model(written, full_check=True)
    assert max(o.version for o in written.opset_import) >= opset
    given = load(model(*OLD[name]))
    want = evaluate(given, {"x": DATA}, fallback=fallback)["y"]
    got = evaluate(load(written), {"x": DATA}, fallback=fallback)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(
        written.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    theirs = session.run(["y"], {"x": DATA})[0]
    np.testing.assert_allclose(theirs, want, rtol=1e-5, atol=1e-5)


def test_a_softmax_of_several_axes_is_refused():
    graph = load(model(9, "y = Softmax(x)", {}), standard=True)
    with pytest.raises(UnsupportedError, match="means something else"):
        to_onnx(beside(graph, 13))


@pytest.mark.parametrize("opset", [10, 11, 20])
def test_an_upsample_with_two_scales_is_refused(opset):
    """Of opset 1: its scales are no list, as Resize needs it."""
    body = "y = Upsample<height_scale = 2.0, width_scale = 3.0>(x)"
    graph = load(model(1, body, {}), standard=True)
    with pytest.raises(
        UnsupportedError, match=r"Upsample of opset 1 .* something else"
    ):
        to_onnx(beside(graph, opset))
