"""Sums of convolutions of one image: which become one convolution, with equal results."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx.parser
import pytest

from tilewright.frontends.onnx.load import load
from tilewright.graph import interp
from tilewright.graph.nodes import Graph
from tilewright.graph.passes.simplify import fold_constants
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.summed_filters import SUMMED_FILTERS

RNG = np.random.default_rng(8)
Shape = tuple[int, ...]
# Of weights by name; the others are drawn.
BAD = {"nan": np.nan, "huge": 3e38, "far": 3e38}
WEIGHTS: dict[str, Shape] = {
    "w": (4, 4, 3, 3), "v": (4, 4, 1, 1), "b": (4,), "wide": (4, 4, 1, 3), "tall": (4, 4, 3, 1),
    "depth": (4, 1, 3, 3), "each": (4, 1, 1, 1), "pairs": (4, 2, 3, 3), "more": (8, 1, 3, 3),
    "few": (8, 1, 1, 1), "c": (4, 1, 1), "one": (), "rows": (6, 1), "s": (4,), "m": (4,),
    "nan": (4, 4, 1, 1), "huge": (4, 4, 1, 1), "image": (1, 4, 6, 6), "large": (4, 4, 5, 5),
    "far": (4, 1, 1), "place": (4, 6, 6), "dense": (8, 4, 3, 3), "halves": (2, 2, 1, 1),
    "narrow": (2, 4, 3, 3),
}  # fmt: skip


def graph_of(
    body: str,
    x: str = "1, 4, 6, 6",
    out: str = "",
    opset: int = 22,
    more: str = "",
) -> Graph:
    """A graph of x by constants; its result is y."""
    shape = out or x
    text = (
        f'<ir_version: 10, opset_import: ["": {opset}]> '
        f"f (float[{x}] x) => (float[{shape}] y{more}) {{ {body} }}"
    )
    model = onnx.parser.parse_model(text)
    for name, extents in WEIGHTS.items():
        data = RNG.standard_normal(extents).astype(np.float32)
        if name in BAD:
            data.flat[0] = BAD[name]
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(data.astype(np.float32), name)
        )
    spread = RNG.uniform(0.5, 2, 4).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(spread, "var"))
    return load(model)


def kinds(graph: Graph) -> Counter[str]:
    return Counter(op.op_type for op in graph.operations)


def same(graph: Graph, after: Graph) -> None:
    (x,) = graph.inputs
    data = {x.name: RNG.standard_normal(x.extents).astype(np.float32)}
    for want, found in zip(
        interp.evaluate(graph, data).values(), interp.evaluate(after, data).values()
    ):
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)


PAD = "<pads = [1, 1, 1, 1]>"
DEPTH = "<pads = [1, 1, 1, 1], group = 4>"
MERGED = {
    "two kernels": f"a = Conv{PAD}(x, w, b) z = Conv(x, v) y = Add(a, z)",
    "the smaller one first": f"a = Conv(x, v, b) z = Conv{PAD}(x, w) y = Sub(a, z)",
    "the image itself": f"a = Conv{PAD}(x, w) y = Add(x, a)",
    "an image less a filter of it": f"a = Conv{DEPTH}(x, depth) y = Sub(x, a)",
    "depthwise": f"a = Conv{DEPTH}(x, depth) z = Conv<group = 4>(x, each, b) y = Add(a, z)",
    "depthwise into two groups": (
        "a = Conv<pads = [1, 1, 1, 1], group = 2>(x, pairs) z = Conv<group = 4>(x, each) "
        "y = Add(a, z)"
    ),
    "a normalization of the image": (
        f"n = BatchNormalization(x, s, b, m, var) a = Conv{PAD}(x, w) y = Add(n, a)"
    ),
    "normalized, scaled and shifted sums": (
        f"a = Conv{PAD}(x, w) z = Conv(x, v) t = Add(a, z) "
        "n = BatchNormalization(t, s, b, m, var) p = Mul(c, n) q = Add(p, x) r = Sub(c, q) "
        "y = Sub(r, one)"
    ),
    "a dilated kernel": (
        "a = Conv<pads = [2, 2, 2, 2], dilations = [2, 2]>(x, w) z = Conv(x, v) y = Add(a, z)"
    ),
    "a kernel within a row": (
        f"a = Conv{PAD}(x, w) z = Conv<pads = [0, 1, 0, 1]>(x, wide) y = Add(a, z)"
    ),
    "padded by itself": (
        'a = Conv<auto_pad = "SAME_UPPER">(x, w) z = Conv(x, v) y = Add(a, z)'
    ),
    "one convolution twice": f"a = Conv{PAD}(x, w) y = Add(a, a)",
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_a_sum_becomes_one_convolution(name: str) -> None:
    graph = graph_of(MERGED[name])
    after = rewrite(graph, [SUMMED_FILTERS])
    assert kinds(after) == {"Conv": 1}
    same(graph, after)


KEPT = {
    "two images": f"r = Relu(x) a = Conv{PAD}(x, w) z = Conv(r, v) y = Add(a, z)",
    "neither kernel inside the other": (
        "a = Conv<pads = [0, 1, 0, 1]>(x, wide) z = Conv<pads = [1, 0, 1, 0]>(x, tall) "
        "y = Add(a, z)"
    ),
    "the smaller kernel is denser": (
        f"a = Conv{DEPTH}(x, depth) z = Conv(x, v) y = Add(a, z)"
    ),
    "a result that is read elsewhere": (
        f"a = Conv{PAD}(x, w) z = Conv(x, v) t = Add(a, z) y = Mul(t, a)"
    ),
    "a dilation that another kernel does not have": (
        "a = Conv<pads = [2, 2, 2, 2]>(x, large) "
        "z = Conv<pads = [2, 2, 2, 2], dilations = [2, 2]>(x, w) y = Add(a, z)"
    ),
    "positions between those of the larger kernel": (
        "a = Conv<pads = [3, 3, 1, 1], dilations = [2, 2]>(x, w) z = Conv(x, v) y = Add(a, z)"
    ),
    "a kernel that leaves the larger one": (
        f"a = Conv{PAD}(x, w) z = Conv<pads = [2, 1, 0, 1]>(x, w) y = Add(a, z)"
    ),
    "a bias that is computed": (
        "p = GlobalAveragePool(x) q = Squeeze(p) "
        f"a = Conv{PAD}(x, w, q) z = Conv(x, v) y = Add(a, z)"
    ),
    "a number per row": f"a = Conv{PAD}(x, w) z = Mul(x, rows) y = Add(a, z)",
    "an image of constants": f"a = Conv{PAD}(x, w) y = Add(a, image)",
    "a weight that is no number": f"a = Conv{PAD}(x, w) z = Conv(x, nan) y = Add(a, z)",
    "a sum that overflows": "a = Conv(x, huge) z = Conv(x, huge) y = Add(a, z)",
    "a kernel that leaves it behind": (
        f"a = Conv{PAD}(x, w) z = Conv<pads = [0, 1, 2, 1]>(x, w) y = Add(a, z)"
    ),
    "no convolution": "n = BatchNormalization(x, s, b, m, var) y = Add(n, x)",
    "one term": f"a = Conv{PAD}(x, w) y = Mul(a, c)",
    "statistics of the batch": (
        f"n = BatchNormalization<training_mode = 1>(x, s, b, m, var) a = Conv{PAD}(x, w) "
        "y = Add(n, a)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_other_sums_stay(name: str) -> None:
    graph = graph_of(KEPT[name])
    assert rewrite(graph, [SUMMED_FILTERS]) is graph


def test_long_and_doubled_sums_are_read_once() -> None:
    """As many steps as operations, and none of them nested."""
    start = f"a = Conv{PAD}(x, w) t0 = Add(a, x) "
    longer = " ".join(f"t{n + 1} = Add(t{n}, c)" for n in range(400))
    graph = graph_of(f"{start}{longer} y = Identity(t400)")
    assert kinds(rewrite(graph, [SUMMED_FILTERS])) == {"Conv": 1, "Identity": 1}
    doubled = " ".join(f"t{n + 1} = Add(t{n}, t{n})" for n in range(50))
    graph = graph_of(f"{start}{doubled} y = Identity(t50)")
    after = rewrite(graph, [SUMMED_FILTERS])
    assert kinds(after) == {"Conv": 1, "Identity": 1}
    weight = after.constants[after.operations[0].inputs[1]]
    own = graph.constants[graph.operations[0].inputs[1]].copy()
    own[range(4), range(4), 1, 1] += 1
    np.testing.assert_allclose(weight, own * 2.0**50, rtol=1e-6)


HALF = "<strides = [2, 2], pads = [1, 1, 1, 1]>"


def test_strides_agree() -> None:
    """x itself has stride 1, whatever its extents."""
    graph = graph_of(
        f"a = Conv{HALF}(x, w) z = Conv<strides = [2, 2]>(x, v) y = Add(a, z)",
        out="1, 4, 3, 3",
    )
    after = rewrite(graph, [SUMMED_FILTERS])
    assert kinds(after) == {"Conv": 1}
    same(graph, after)
    third = "<strides = [3, 3], pads = [0, 0, 1, 1]>"
    body = f"a = Conv{HALF}(x, w) z = Conv{third}(x, v) y = Add(a, z)"
    graph = graph_of(body, out="1, 4, 3, 3")
    assert rewrite(graph, [SUMMED_FILTERS]) is graph
    far = "<strides = [2, 2], pads = [1, 1, 6, 6]>"
    graph = graph_of(f"a = Conv{far}(x, w) y = Add(a, x)")
    assert rewrite(graph, [SUMMED_FILTERS]) is graph


def test_several_results_per_channel() -> None:
    body = (
        "a = Conv<pads = [1, 1, 1, 1], group = 4>(x, more) z = Conv<group = 4>(x, few) "
        "y = Add(a, z)"
    )
    graph = graph_of(body, out="1, 8, 6, 6")
    after = rewrite(graph, [SUMMED_FILTERS])
    assert kinds(after) == {"Conv": 1}
    same(graph, after)


@pytest.mark.parametrize(
    ("channels", "wide", "small", "group"),
    [(8, "dense", "few", 4), (2, "narrow", "halves", 2)],
    ids=["several results per channel", "several channels per result"],
)
def test_only_depthwise_kernels_spread_to_other_groups(channels, wide, small, group):
    body = (
        f"a = Conv{PAD}(x, {wide}) z = Conv<group = {group}>(x, {small}) y = Add(a, z)"
    )
    graph = graph_of(body, out=f"1, {channels}, 6, 6")
    assert rewrite(graph, [SUMMED_FILTERS]) is graph


def test_a_smaller_image_that_is_repeated_is_no_term() -> None:
    """One position of a convolution over the whole image is added to every position."""
    body = "a = Conv<pads = [0, 0, 4, 4]>(x, large) t = Conv(x, large) y = Add(a, t)"
    graph = graph_of(body, x="1, 4, 5, 5")
    assert rewrite(graph, [SUMMED_FILTERS]) is graph


def test_no_result_of_the_graph_is_lost() -> None:
    body = f"a = Conv{PAD}(x, w) z = Conv(x, v) y = Add(a, z)"
    graph = graph_of(body, more=", float[1, 4, 6, 6] a")
    assert rewrite(graph, [SUMMED_FILTERS]) is graph


def test_other_types_and_ranks_stay() -> None:
    graph = graph_of("y = Add(x, x)", x="5")
    assert rewrite(graph, [SUMMED_FILTERS]) is graph
    half = "<to = 10>"
    body = (
        f"h = Cast{half}(x) k = Cast{half}(w) a = Conv{PAD}(h, k) t = Add(a, h) "
        "y = Cast<to = 1>(t)"
    )
    graph = fold_constants(graph_of(body))
    assert kinds(graph)["Cast"] == 2
    assert rewrite(graph, [SUMMED_FILTERS]) is graph


def test_statistics_per_element_stay() -> None:
    body = (
        "n = BatchNormalization<spatial = 0>(x, place, place, place, place) "
        f"a = Conv{PAD}(x, w) y = Add(n, a)"
    )
    graph = graph_of(body, opset=7)
    assert rewrite(graph, [SUMMED_FILTERS]) is graph


def test_a_bias_that_overflows_is_added_later() -> None:
    """What is left of two terms of 3e38 is added to the convolution of the others."""
    graph = graph_of(
        f"a = Conv{PAD}(x, w) t = Add(a, x) u = Add(t, far) y = Add(u, far)"
    )
    after = rewrite(graph, [SUMMED_FILTERS])
    assert kinds(after) == {"Conv": 1, "Add": 1}
    (conv, _) = after.operations
    assert all(np.isfinite(after.constants[v]).all() for v in conv.inputs[1:] if v)
