"""Window positions that meet padding alone: which convolutions lose them, with equal results."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tilewright.frontends.onnx.load import load
from tilewright.graph import interp
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.padding_taps import PADDING_TAPS

Shape = tuple[int, ...]
RNG = np.random.default_rng(5)


def graph_of(x: Shape, w: Shape, out: Shape, how: str, bad: float = 0.5) -> Graph:
    """A convolution of x by a constant; the weight's first element is `bad`."""
    weight = RNG.standard_normal(w).astype(np.float32)
    weight.flat[0] = bad
    shapes = [", ".join(map(str, s)) for s in (x, out)]
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> '
        f"f (float[{shapes[0]}] x) => (float[{shapes[1]}] y) {{ y = Conv<{how}>(x, w) }}"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return load(model)


def weight_of(graph: Graph) -> Shape:
    (op,) = (op for op in graph.operations if op.op_type == "Conv")
    return tuple(op.inputs[1].extents[2:])  # type: ignore[union-attr]


# x, weights, result, attributes, and the window that is left.
CASES: dict[str, tuple[Shape, Shape, Shape, str, Shape]] = {
    "wide dilations over a small image": (
        (1, 2, 5, 5), (3, 2, 3, 3), (1, 3, 5, 5),
        "pads = [6, 6, 6, 6], dilations = [6, 6]", (1, 1),
    ),
    "a dilation as wide as the image": (
        (1, 2, 5, 5), (3, 2, 3, 3), (1, 3, 5, 5),
        "pads = [5, 5, 5, 5], dilations = [5, 5]", (1, 1),
    ),
    "one narrower": (
        (1, 2, 5, 5), (3, 2, 3, 3), (1, 3, 5, 5),
        "pads = [4, 4, 4, 4], dilations = [4, 4]", (3, 3),
    ),
    "one frame": (
        (1, 2, 1, 4, 4), (3, 2, 3, 3, 3), (1, 3, 1, 4, 4),
        "pads = [1, 1, 1, 1, 1, 1]", (1, 3, 3),
    ),
    "two frames": (
        (1, 2, 2, 4, 4), (3, 2, 3, 3, 3), (1, 3, 2, 4, 4),
        "pads = [1, 1, 1, 1, 1, 1]", (3, 3, 3),
    ),
    "in front only": (
        (1, 2, 3), (3, 2, 4), (1, 3, 3), "pads = [3, 0], strides = [1]", (3,),
    ),
    "a stride over the data's front": (
        (1, 2, 1), (3, 2, 3), (1, 3, 1), "pads = [1, 1], strides = [4]", (1,),
    ),
    "one result, of the last position": (
        (1, 2, 2), (3, 2, 4), (1, 3, 1), "pads = [3, 0], strides = [5]", (1,),
    ),
    "a stride that jumps over the data": (
        (1, 1, 2), (1, 1, 2), (1, 1, 2), "pads = [1, 3], strides = [4]", (1,),
    ),
    "a step that is longer than the padding": (
        (1, 1, 2), (1, 1, 2), (1, 1, 1), "pads = [1, 0], dilations = [2]", (2,),
    ),
    "padding alone": (
        (1, 1, 1), (1, 1, 1), (1, 1, 2), "pads = [1, 1], strides = [2]", (1,),
    ),
    "two positions in padding alone": (
        (1, 1, 1), (1, 1, 2), (1, 1, 2),
        "pads = [1, 5], strides = [4], dilations = [2]", (2,),
    ),
    "groups": (
        (1, 4, 3, 3), (4, 2, 3, 1), (1, 4, 3, 3),
        "pads = [3, 0, 3, 0], dilations = [3, 1], group = 2", (1, 1),
    ),
    "padded by itself": (
        (1, 2, 1, 3), (3, 2, 3, 3), (1, 3, 1, 3), 'auto_pad = "SAME_UPPER"', (1, 3),
    ),
    "no padding": ((1, 2, 4), (3, 2, 3), (1, 3, 2), "pads = [0, 0]", (3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_positions_in_padding_alone_are_left_out(name: str) -> None:
    x, w, out, how, left = CASES[name]
    graph = graph_of(x, w, out, how)
    after = rewrite(graph, [PADDING_TAPS])
    assert weight_of(after) == left
    data = {"x": RNG.standard_normal(x).astype(np.float32)}
    [want] = interp.evaluate(graph, data).values()
    [found] = interp.evaluate(after, data).values()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_stay(bad: float) -> None:
    graph = graph_of(*CASES["one frame"][:4], bad=bad)
    assert weight_of(rewrite(graph, [PADDING_TAPS])) == (3, 3, 3)


def test_nothing_is_taken_from_an_empty_tensor() -> None:
    graph = graph_of((0, 2, 1), (3, 2, 3), (0, 3, 1), "pads = [1, 1]")
    assert weight_of(rewrite(graph, [PADDING_TAPS])) == (3,)
