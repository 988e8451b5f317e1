"""Group normalization as exporters write it: where sums per channel take its place."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tilewright.frontends.onnx.load import load
from tilewright.graph import interp
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.group_norm import GROUP_NORM

RNG = np.random.default_rng(4)


def graph_of(
    x: tuple[int | str, ...],
    rows: tuple[int, ...],
    scale: float = 1,
    bias: float = 0,
    back: tuple[int | str, ...] = (),
    how: str = "",
    kind: str = "float",
) -> Graph:
    """x as rows, normalized, in the shape `back`, by default that of x."""
    back = back or x
    shapes = [", ".join(map(str, s)) for s in (x, back)]
    text = (
        '<ir_version: 10, opset_import: ["": 22]> '
        f"f ({kind}[{shapes[0]}] x) => ({kind}[{shapes[1]}] y) {{ "
        f"r = Reshape(x, rows) n = InstanceNormalization{how}(r, scale, bias) "
        "y = Reshape(n, back) }"
    )
    model = onnx.parser.parse_model(text)
    dtype = np.float16 if kind == "float16" else np.float32
    groups = rows[1]
    data = {
        "rows": np.array(rows, np.int64),
        "back": np.array([0 if n == "N" else n for n in back], np.int64),
        "scale": np.full(groups, scale, dtype),
        "bias": np.full(groups, bias, dtype),
    }
    for name, array in data.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return load(model)


@pytest.mark.parametrize(
    ("x", "groups", "how"),
    [
        ((2, 6, 4, 5), 3, ""),
        ((1, 4, 3, 3), 1, "<epsilon = 0.5>"),
        ((2, 4, 7), 4, ""),
        ((1, 4, 2, 3, 2), 2, ""),
    ],
    ids=str,
)
def test_channels_are_summed(x: tuple[int, ...], groups: int, how: str) -> None:
    graph = graph_of(x, (x[0], groups, -1), how=how)
    after = rewrite(graph, [GROUP_NORM])
    assert not any(op.op_type == "InstanceNormalization" for op in after.operations)
    data = {"x": (3 + RNG.standard_normal(x)).astype(np.float32)}
    [want] = interp.evaluate(graph, data).values()
    [found] = interp.evaluate(after, data).values()
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_the_mean_is_subtracted_before_squaring() -> None:
    x = (1e4 + RNG.standard_normal((1, 4, 8, 8))).astype(np.float32)
    rows = x.astype(np.float64).reshape(1, 2, -1)
    center = rows - rows.mean(-1, keepdims=True)
    want = center / np.sqrt((center**2).mean(-1, keepdims=True) + 1e-5)
    after = rewrite(graph_of(x.shape, (1, 2, -1)), [GROUP_NORM])
    [found] = interp.evaluate(after, {"x": x}).values()
    np.testing.assert_allclose(found, want.reshape(x.shape), atol=4e-3)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(graph_of((1, 4, 3, 3), (1, 2, -1), scale=2), id="a scale"),
        pytest.param(graph_of((1, 4, 3, 3), (1, 2, -1), bias=1), id="a bias"),
        pytest.param(graph_of((1, 4, 3, 3), (1, 2, -1), kind="float16"), id="halves"),
        pytest.param(graph_of((1, 4, 3, 2), (1, 8, -1)), id="parts of channels"),
        pytest.param(graph_of((2, 4, 3, 3), (1, 2, -1)), id="two images in one"),
        pytest.param(graph_of((2, 4, 3, 3), (2, 2, 6, 3)), id="rows in two axes"),
        pytest.param(
            graph_of((1, 4, 3, 3), (1, 2, -1), back=(4, 9)), id="another shape"
        ),
        pytest.param(graph_of((2, 6), (2, 2, -1)), id="no image"),
        pytest.param(graph_of(("N", 4, 3, 3), (0, 2, -1)), id="any number of images"),
        pytest.param(graph_of((1, 0, 3, 3), (1, 0, 9)), id="no channels"),
    ],
)
def test_others_stay(graph: Graph) -> None:
    assert rewrite(graph, [GROUP_NORM]) is graph
