"""Padding before convolutions and cuts behind them: which become their own, with equal results."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tilewright.frontends.onnx.load import load
from tilewright.graph import interp
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.pipeline import PadWindows, graph_pipeline
from tilewright.graph.rules.cropped_convolutions import CROPPED_CONV
from tilewright.graph.rules.driver import rewrite

RNG = np.random.default_rng(6)


def graph_of(nodes: str, x: str, outputs: str, **constants: object) -> Graph:
    """A graph of x by constants; arrays of integers are int64, others float32."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> '
        f"f (float[{x}] x) => ({outputs}) {{ {nodes} }}"
    )
    for name, value in constants.items():
        array = np.asarray(value)
        kind = np.int64 if array.dtype.kind == "i" else np.float32
        given = onnx.numpy_helper.from_array(array.astype(kind), name)
        model.graph.initializer.append(given)
    return load(model)


def cut(
    x: str,
    weights: tuple[int, ...],
    how: str,
    places: tuple[list[int], ...],
    outputs: str = "float y",
    more: str = "",
) -> Graph:
    """A convolution whose result is cut. places: starts, ends, axes, maybe steps of the Slice."""
    names = ("starts", "ends", "axes", "steps")[: len(places)]
    return graph_of(
        f"t = Conv<{how}>(x, w, b) y = Slice(t, {', '.join(names)}) {more}",
        x,
        outputs,
        w=RNG.standard_normal(weights),
        b=RNG.standard_normal(weights[:1]),
        **dict(zip(names, places, strict=True)),
    )


def names_of(graph: Graph) -> list[str]:
    return [op.op_type for op in graph.operations]


def conv_of(graph: Graph) -> Operation:
    (op,) = (op for op in graph.operations if op.op_type == "Conv")
    return op


def agree(before: Graph, after: Graph) -> None:
    shape = before.inputs[0].extents
    data = {"x": RNG.standard_normal(shape).astype(np.float32)}
    [want] = interp.evaluate(before, data).values()
    [found] = interp.evaluate(after, data).values()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


# x, weights, attributes, starts, ends and axes of the Slice, and the padding that is left.
CUT = {
    "a causal convolution": (
        "2, 3, 11", (4, 3, 3), "pads = [4, 4], dilations = [2]",
        ([0], [-4], [2]), [4, 0],
    ),
    "a part of what is behind a dilated window": (
        "1, 2, 9", (3, 2, 3), "pads = [4, 4], dilations = [2]",
        ([0], [-2], [2]), [4, 2],
    ),
    "one result too many of an even window": (
        "1, 4, 9", (4, 2, 6), "pads = [3, 3], group = 2", ([0], [-1], [-1]), [3, 2],
    ),
    "in front and behind": (
        "1, 2, 8, 7", (3, 2, 3, 5), "pads = [2, 3, 2, 2]",
        ([1, 2], [9, 7], [2, 3]), [1, 1, 1, 1],
    ),
    "by a stride": (
        "1, 2, 9", (3, 2, 3), "pads = [4, 4], strides = [2]", ([1], [7], [2]), [2, 2],
    ),
    "behind data that no window reads": (
        "1, 2, 10", (3, 2, 3), "pads = [2, 0], strides = [2]", ([1], [9], [2]), [0, 0],
    ),
    "padded by itself": (
        "1, 2, 9", (3, 2, 4), 'auto_pad = "SAME_UPPER"', ([0], [8], [2]), [1, 1],
    ),
    "nothing": ("1, 2, 9", (3, 2, 3), "pads = [1, 1]", ([0], [99], [2]), [1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", CUT)
def test_what_is_cut_is_not_computed(name: str) -> None:
    x, weights, how, places, left = CUT[name]
    graph = cut(x, weights, how, places)
    after = rewrite(graph, [CROPPED_CONV])
    assert names_of(after) == ["Conv"]
    assert list(conv_of(after).attr("pads")) == left
    agree(graph, after)


def test_what_follows_the_cut_joins_the_convolution() -> None:
    """A BatchNormalization behind the cut of a causal convolution."""
    rng = np.random.default_rng(5)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> f (float[2, 3, 9] x) => (float[2, 4, 9] y) '
        "<int64[1] start = {0}, int64[1] end = {-4}, int64[1] axis = {2}> "
        "{ t = Conv<pads = [4, 4], dilations = [2]>(x, w) c = Slice(t, start, end, axis) "
        "y = BatchNormalization(c, f, f, f, f) }"
    )
    for name, shape in (("w", (4, 3, 3)), ("f", 4)):
        array = rng.uniform(0.5, 1, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = load(model)
    after = graph_pipeline("default", None).run(graph)
    assert names_of(after) == ["Conv"]
    agree(graph, after)


# x, weights, attributes and the Slice, of which one condition is not met.
KEPT = {
    "data in front": ("1, 2, 9", (3, 2, 3), "pads = [1, 1]", ([2], [9], [2])),
    "data behind": ("1, 2, 9", (3, 2, 3), "pads = [1, 1]", ([0], [-2], [2])),
    "padding within a stride": (
        "1, 2, 9", (3, 2, 3), "pads = [1, 1], strides = [2]", ([1], [5], [2]),
    ),
    "data of a whole stride": (
        "1, 2, 10", (3, 2, 2), "pads = [0, 0], strides = [2]", ([0], [4], [2]),
    ),
    "channels": ("1, 2, 9", (3, 2, 3), "pads = [1, 1]", ([0], [2], [1])),
    "images": ("2, 2, 9", (3, 2, 3), "pads = [1, 1]", ([1], [2], [0])),
    "every second result": (
        "1, 2, 9", (3, 2, 3), "pads = [1, 1]", ([0], [9], [2], [2]),
    ),
    "results in reverse": (
        "1, 2, 9", (3, 2, 3), "pads = [1, 1]", ([8], [-99], [2], [-1]),
    ),
    "channels in reverse": (
        "1, 2, 9", (3, 2, 3), "pads = [1, 1]", ([2], [-99], [1], [-1]),
    ),
    "padding in reverse": (
        "1, 2, 1", (3, 2, 3), "pads = [6, 6]", ([6], [3], [2], [-1]),
    ),
    "all": ("1, 2, 9", (3, 2, 3), "pads = [1, 1]", ([4], [4], [2])),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_padding_stays_cut(name: str) -> None:
    graph = cut(*KEPT[name])
    assert names_of(rewrite(graph, [CROPPED_CONV])) == ["Conv", "Slice"]


def test_a_result_that_others_read_stays_whole() -> None:
    places = ([0], [-2], [2])
    both = "float y, float z"
    graph = cut("1, 2, 9", (3, 2, 3), "pads = [2, 2]", places, both, "z = Relu(t)")
    after = rewrite(graph, [CROPPED_CONV])
    assert sorted(names_of(after)) == ["Conv", "Relu", "Slice"]


def test_an_image_of_unknown_size_is_left() -> None:
    graph = cut("1, 2, N", (3, 2, 3), "pads = [2, 2]", ([0], [-2], [2]))
    assert "Slice" in names_of(rewrite(graph, [CROPPED_CONV]))


def padded(
    pads: list[int],
    value: float = 0.0,
    mode: str = "constant",
    more: str = "",
    image: str = "1, 2, 5, 5",
    group: int = 1,
) -> Graph:
    """Padding of an image in front of a strided convolution of two channels."""
    outputs = "float y, float z" if more else "float y"
    return graph_of(
        f'p = Pad<mode = "{mode}">(x, pads, value) '
        f"y = Conv<strides = [2, 2], pads = [0, 1, 0, 0], group = {group}>(p, w, b) {more}",
        image,
        outputs,
        w=RNG.standard_normal((4, 2 // group, 3, 3)),
        b=RNG.standard_normal(4),
        pads=pads,
        value=np.float32(value),
    )


AROUND = [0, 0, 0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize("group", [1, 2])
def test_padding_before_a_convolution_is_its_own(group: int) -> None:
    """Exporters of TensorFlow's networks pad images so, more behind than in front."""
    graph = padded(AROUND, group=group)
    after = PadWindows().run(graph)
    assert names_of(after) == ["Conv"]
    assert list(conv_of(after).attr("pads")) == [0, 1, 1, 2]
    agree(graph, after)


@pytest.mark.parametrize(
    "graph",
    [
        padded(AROUND, value=1.0),
        padded(AROUND, value=float("nan")),
        padded(AROUND, mode="edge"),
        padded(AROUND, more="z = Relu(p)"),
        padded([0, 0, -1, 0, 0, 0, 1, 2]),
        padded([1, 0, 0, 0, 0, 0, 1, 2]),
        padded([0, 1, 0, 0, 0, 0, 1, 2], image="1, 1, 5, 5"),
        padded([0, 0, 0, 0, 0, 1, 1, 2], image="1, 1, 5, 5"),
        padded(AROUND, image="1, 2, 5, N"),
    ],
    ids=[
        "of ones",
        "of NaN",
        "of the edge",
        "read by others",
        "a cut",
        "of images",
        "of channels in front",
        "of channels behind",
        "of any size",
    ],
)
def test_other_padding_stays(graph: Graph) -> None:
    after = PadWindows().run(graph)
    assert names_of(after) == names_of(graph)
    assert list(conv_of(after).attr("pads")) == [0, 1, 0, 0]


def test_a_window_of_unknown_size_is_left() -> None:
    """Of a weight that is an input, too."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> '
        "f (float[1, 2, 9] x, float[3, 2, K] w) => (float y) "
        "<int64[6] pads = {0, 0, 2, 0, 0, 2}, int64[1] one = {1}, int64[1] axis = {2}> "
        "{ p = Pad(x, pads) t = Conv(p, w) y = Slice(t, one, axis, axis) }"
    )
    assert "Slice" in names_of(PadWindows().run(load(model)))
