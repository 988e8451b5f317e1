"""Which convolutions become bfloat16, and where the values they read are rounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tilewright.base.errors import InputError
from tilewright.frontends.onnx.load import load
from tilewright.graph import interp
from tilewright.graph.nodes import Graph
from tilewright.graph.passes.round_once import round_once
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.lower_convolutions import CONVOLUTION
from tilewright.graph.verify import verify

RNG = np.random.default_rng(7)
IMAGE = "float[1, 16, 6, 6]"


def graph(
    body: str,
    x: str = IMAGE,
    y: str = "float[n, c, h, v] y",
    **weights: tuple[int, ...],
) -> Graph:
    """A graph of x whose constants have the given shapes."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 22]> f ({x} x) => ({y}) {{ {body} }}'
    )
    for name, shape in weights.items():
        array = (RNG.standard_normal(shape) / 8).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return load(model)


def lowered(g: Graph) -> Graph:
    found = round_once(rewrite(g, [CONVOLUTION]))
    verify(found)
    return found


def types(g: Graph) -> list[str]:
    """Each operation with its result's type, without conversions."""
    named = [f"{op.op_type} {op.writes[0].dtype}" for op in g.operations]
    return [n for n in named if not n.startswith("Cast")]


def casts(g: Graph) -> Counter[str]:
    made = [op for op in g.operations if op.op_type == "Cast"]
    return Counter(str(op.writes[0].dtype) for op in made)


def results(g: Graph, feeds: dict[str, Any]) -> list[Any]:
    return list(interp.evaluate(g, feeds).values())


def close(g: Graph, found: Graph, most: float = 2.0**-6) -> None:
    """Both graphs give the same, within the rounding of a few layers."""
    feeds: dict[str, Any] = {
        v.name: RNG.standard_normal(v.extents).astype(np.float32) for v in g.inputs
    }
    for a, b in zip(results(g, feeds), results(found, feeds), strict=True):
        assert np.abs(a - b).max() <= most * np.abs(a).max()


@pytest.mark.parametrize(
    ("x", "weights", "how", "is_lower"),
    [
        (IMAGE, (16, 16, 3, 3), "pads = [1, 1, 1, 1]", True),
        (IMAGE, (15, 16, 3, 3), "", False),  # few outputs
        ("float[1, 15, 6, 6]", (16, 15, 1, 1), "", False),  # few channels
        ("float[1, 32, 6, 6]", (32, 16, 3, 3), "group = 2", True),
        ("float[1, 32, 6, 6]", (32, 8, 5, 5), "group = 4", False),
        ("float[1, 32, 6, 6]", (16, 16, 1, 1), "group = 2", False),  # 8 outputs each
        ("float[1, 3, 9, 9]", (16, 3, 7, 7), "", True),  # few channels, large windows
        ("float[1, 3, 9, 9]", (16, 3, 6, 6), "", False),
        ("float[1, 16, 8]", (16, 16, 3), "", True),
        ("float[1, 16, 3, 3, 3]", (16, 16, 2, 2, 2), "", True),
    ],
)
def test_which_convolutions(
    x: str, weights: tuple[int, ...], how: str, is_lower: bool
) -> None:
    rank = len(weights)
    out = f"{x.split('[')[0]}[{', '.join('nchvu'[:rank])}] y"
    model = f"y = Conv<{how}>(x, w)" if how else "y = Conv(x, w)"
    found = lowered(graph(model, x, out, w=weights))
    assert ("MixedConv float32" in types(found)) == is_lower


def test_weights_that_are_computed_and_open_sizes_stay() -> None:
    made = graph("w = Exp(x) y = Conv(x, w)", "float[16, 16, 1, 1]")
    assert "Conv float32" in types(lowered(made))
    double = graph(
        "d = Cast<to = 11>(x) e = Cast<to = 11>(w) y = Conv(d, e)",
        y="double[n, c, h, v] y",
        w=(16, 16, 1, 1),
    )
    assert "Conv float64" in types(lowered(double))
    opened = graph("y = Conv(x, w)", "float[1, 16, N, 6]", w=(16, 16, 1, 1))
    assert "Conv float32" in types(lowered(opened))


def test_weights_beyond_bfloat16_are_refused_by_name() -> None:
    """Numbers between its largest and that of float32 would become infinite; a bias stays."""
    g = graph("y = Conv(x, w, b)", w=(16, 16, 1, 1), b=(16,))

    def first(name: str, number: float) -> Graph:
        arrays = {v: a.copy() for v, a in g.constants.items()}
        next(a for v, a in arrays.items() if v.name == name).flat[0] = number
        return replace(g, constants=arrays)

    lowered(first("w", np.inf))
    lowered(first("b", 3.4e38))
    with pytest.raises(InputError, match=r"weights 'w' .* beyond bfloat16"):
        lowered(first("w", 3.4e38))


def test_the_sum_the_bias_and_the_result_are_not_rounded() -> None:
    """Of products that bfloat16 represents, which a result in it would not."""
    g = graph("y = Conv(x, w, b)", w=(16, 16, 1, 1), b=(16,))
    arrays = {
        v: np.full(a.shape, 1.0 if a.ndim > 1 else 2.0**-9, np.float32)
        for v, a in g.constants.items()
    }
    found = lowered(replace(g, constants=arrays))
    assert casts(found) == {"bfloat16": 1}
    x = RNG.integers(0, 9, (1, 16, 6, 6)).astype(np.float32)
    (y,) = results(found, {"x": x})
    want = x.sum(axis=1, keepdims=True) + np.float32(2.0**-9)
    np.testing.assert_array_equal(y, np.broadcast_to(want, y.shape))


def test_a_value_is_rounded_once_for_all_its_readers() -> None:
    """Two convolutions and a sum read `r`; all but its producer see it rounded."""
    body = """r = Relu(x) a = Conv(r, w) b = Conv(r, v) c = Add(a, b) y = Add(c, r)"""
    g = graph(body, w=(16, 16, 1, 1), v=(16, 16, 1, 1))
    found = lowered(g)
    (relu,) = (op for op in found.operations if op.op_type == "Relu")
    assert [op.op_type for op in found.users(relu.writes[0])] == ["Cast"]
    assert casts(found) == {"bfloat16": 1, "float32": 1}  # of r
    close(g, found)


def test_a_result_of_the_graph_is_not_rounded() -> None:
    g = graph("y = Relu(x) z = Conv(y, w)", y=f"{IMAGE} y, {IMAGE} z", w=(16, 16, 1, 1))
    found = lowered(g)
    x = RNG.standard_normal((1, 16, 6, 6)).astype(np.float32)
    np.testing.assert_array_equal(results(found, {"x": x})[0], np.maximum(x, 0))


def test_a_result_that_is_moved_is_not_rounded() -> None:
    body = "m = MaxPool<kernel_shape = [1, 1]>(x) z = Conv(m, w)"
    found = lowered(graph(body, y=f"{IMAGE} m, {IMAGE} z", w=(16, 16, 1, 1)))
    x = RNG.standard_normal((1, 16, 6, 6)).astype(np.float32)
    np.testing.assert_array_equal(results(found, {"x": x})[0], x)


def test_an_input_is_not_rounded_for_others() -> None:
    g = graph("a = Conv(x, w) y = Add(a, x)", w=(16, 16, 1, 1))
    (add,) = (op for op in lowered(g).operations if op.op_type == "Add")
    assert add.inputs[1] is not None and add.inputs[1].name == "x"


@pytest.mark.parametrize(
    ("body", "moved"),
    [
        ("m = MaxPool<kernel_shape = [2, 2]>(r)", "MaxPool bfloat16"),
        ("m = Concat<axis = 2>(r, r)", "Concat bfloat16"),
        ("m = Transpose<perm = [0, 1, 3, 2]>(r)", "Transpose bfloat16"),
        ("m, i = MaxPool<kernel_shape = [2, 2]>(r)", "MaxPool float32"),  # two results
        ("m = AveragePool<kernel_shape = [2, 2]>(r)", "AveragePool float32"),
        # A number that fills the border has the type of the image.
        (
            """p = Constant<value_ints = [0, 0, 1, 1, 0, 0, 1, 1]>()
            f = Constant<value_float = 0.5>() m = Pad(r, p, f)""",
            "Pad float32",
        ),
    ],
)
def test_operands_are_rounded_of_what_moves_elements(body: str, moved: str) -> None:
    outputs = "float[n, c, h, v] y"
    if "i =" in body:
        outputs += ", int64[n, c, h, v] i"
    g = graph(f"r = Relu(x) {body} y = Conv(m, w)", y=outputs, w=(16, 16, 1, 1))
    found = lowered(g)
    assert moved in types(found)
    (op,) = (op for op in found.operations if op.op_type == moved.split()[0])
    of = {v.dtype for v in (*op.reads, op.writes[0]) if v.dtype and v.dtype.is_float}
    assert len(of) == 1
    close(g, found)


def test_what_moves_elements_that_others_read_first() -> None:
    """`m` has another reader, which sees it rounded; so does the reader of `r`."""
    body = """r = Relu(x) m = MaxPool<kernel_shape = [1, 1]>(r) a = Conv(m, w)
    b = Exp(m) c = Exp(r) d = Add(a, b) y = Add(d, c)"""
    g = graph(body, w=(16, 16, 1, 1))
    found = lowered(g)
    assert "MaxPool bfloat16" in types(found)
    assert casts(found)["bfloat16"] == 1
    close(g, found)


def test_a_branch_reads_what_is_rounded_outside() -> None:
    body = """r = Relu(x) a = Conv(r, w) s = ReduceSum<keepdims = 0>(x)
    z = Constant<value_float = 0.0>() k = Greater(s, z)
    b = If (k) <then_branch = t () => (float[1, 16, 6, 6] p) { p = Exp(r) },
                else_branch = e () => (float[1, 16, 6, 6] q) { q = Identity(r) }>
    y = Add(a, b)"""
    g = graph(body, w=(16, 16, 1, 1))
    found = lowered(g)
    (relu,) = (op for op in found.operations if op.op_type == "Relu")
    assert [op.op_type for op in found.users(relu.writes[0])] == ["Cast"]
    close(g, found)
