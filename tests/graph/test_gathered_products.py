"""Products with matrices chosen at run time: the operator, its derivative, and the rules."""

import numpy as np
import onnx
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import ExecutionError, ModelError
from tilewright.frontends.onnx.load import load
from tilewright.graph import interp
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.gathered_products import GATHERED_PRODUCTS

RNG = np.random.default_rng(5)
HEAD = '<ir_version: 10, opset_import: ["": 22, "tilewright": 1]>'
OWN = "y = tilewright.GatheredMatMul(x, w, e)"


def graph_of(inputs, body, out="float[t, r, n] y", weights=None):
    given = ", ".join(
        f"{'int64' if n == 'e' else dtype}[{', '.join(map(str, s))}] {n}"
        for n, (dtype, s) in inputs.items()
    )
    model = onnx.parser.parse_model(f"{HEAD} f ({given}) => ({out}) {{ {body} }}")
    if weights is not None:
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return load(model)


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def by_gather(x, body="o = Gather(w, e) y = MatMul(x, o)", weights=(3, 5, 64), e=4):
    return graph_of(
        {"x": ("float", x), "e": ("int64", (e,))},
        body,
        f"float[{e}, {x[1]}, {weights[-1]}] y",
        drawn(*weights),
    )


def names(graph):
    return [op.op_type for op in graph.operations]


@pytest.mark.parametrize("columns", [64, 7, 33])
def test_constant_matrices_are_not_copied(columns):
    graph = by_gather((4, 2, 5), weights=(3, 5, columns))
    after = rewrite(graph, GATHERED_PRODUCTS)
    assert "GatheredMatMul" in names(after)
    assert "Gather" not in names(after)
    feeds = {"x": drawn(4, 2, 5), "e": np.array([2, -1, 0, -3])}
    [want] = interp.evaluate(graph, feeds).values()
    [got] = interp.evaluate(after, feeds).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    found = tw.compile(graph, threads=1, fallback="error")(*feeds.values())
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


KEEPS_OFF = {
    "one matrix for all of x": by_gather((1, 2, 5)),
    "another axis": by_gather(
        (4, 2, 4), "o = Gather<axis = 1>(w, e) y = MatMul(x, o)", (4, 9, 64)
    ),
    "vectors": graph_of(
        {"x": ("float", (4, 3)), "e": ("int64", (3,))},
        "o = Gather(w, e) y = MatMul(x, o)",
        "float[4, 5] y",
        drawn(7, 5),
    ),
    "matrices known at run time": graph_of(
        {"x": ("float", (4, 2, 5)), "w": ("float", (3, 5, 64)), "e": ("int64", (4,))},
        "o = Gather(w, e) y = MatMul(x, o)",
        "float[4, 2, 64] y",
    ),
    "integers": graph_of(
        {"x": ("int32", (4, 2, 5)), "e": ("int64", (4,))},
        "o = Gather(w, e) y = MatMul(x, o)",
        "int32[4, 2, 64] y",
        np.ones((3, 5, 64), np.int32),
    ),
    "an unknown number": graph_of(
        {"x": ("float", ("t", 2, 5)), "e": ("int64", ("t",))},
        "o = Gather(w, e) y = MatMul(x, o)",
        "float[t, 2, 64] y",
        drawn(3, 5, 64),
    ),
    "panels that are ready": graph_of(
        {"x": ("float", (4, 2, 5)), "e": ("int64", (4,))},
        OWN,
        "float[4, 2, 2, 64] y",
        drawn(3, 2, 5, 64),
    ),
    "one panel of 32 columns": graph_of(
        {"x": ("float", (4, 2, 5)), "e": ("int64", (4,))},
        OWN,
        "float[4, 2, 1, 32] y",
        drawn(3, 1, 5, 32),
    ),
    "a panel and a rest": graph_of(
        {"x": ("float", (4, 2, 5)), "e": ("int64", (4,))},
        OWN,
        "float[4, 2, 1, 40] y",
        drawn(3, 1, 5, 40),
    ),
}


@pytest.mark.parametrize("name", KEEPS_OFF)
def test_other_products_stay(name):
    graph = KEEPS_OFF[name]
    assert rewrite(graph, GATHERED_PRODUCTS) is graph


@pytest.mark.parametrize("math", ["default", "exact"])
def test_exact_math_keeps_the_product_as_written(math):
    with events.record() as log:
        tw.compile(by_gather((4, 2, 5)), threads=1, math=math)
    rules = [e.fields["rule"] for e in log if e.kind == "rule"]
    own = [rule.name for rule in GATHERED_PRODUCTS]
    assert any(r in own for r in rules) == (math == "default")


@pytest.mark.parametrize("number", [3, -4])
def test_a_number_outside_of_the_matrices_is_an_error(number):
    graph = by_gather((4, 2, 5))
    exe = tw.compile(graph, threads=1, fallback="error")
    with pytest.raises(ExecutionError):
        exe(drawn(4, 2, 5), np.array([0, number, 1, 0]))


@pytest.mark.parametrize(
    ("x", "w", "e"),
    [
        ((4, 2, 5), (3, 1, 6, 7), (4,)),
        ((4, 2, 5), (3, 1, 5, 7), (3,)),
        ((4, 2, 5), (3, 5, 7), (4,)),
        ((4, 5), (3, 1, 5, 7), (4,)),
    ],
)
def test_shapes_that_do_not_multiply_are_refused(x, w, e):
    given = {"x": ("float", x), "w": ("float", w), "e": ("int64", e)}
    with pytest.raises(ModelError, match="shapes"):
        graph_of(given, OWN, "float[a, b, c, d] y")


def test_derivatives_are_those_of_the_copied_matrices():
    given = {
        "x": ("double", (4, 2, 5)),
        "w": ("double", (3, 2, 5, 7)),
        "e": ("int64", (4,)),
    }
    square = "z = Mul(y, y) loss = ReduceSum<keepdims = 0>(z)"
    copied = (
        "o = Gather(w, e) one = Constant<value_ints = [1]>() a = Unsqueeze(x, one)"
        " p = MatMul(a, o) y = Transpose<perm = [0, 2, 1, 3]>(p)"
    )
    own, other = (
        tw.compile(tw.grad(graph_of(given, f"{body} {square}", "double loss")))
        for body in (OWN, copied)
    )
    feeds = (
        RNG.standard_normal((4, 2, 5)),
        RNG.standard_normal((3, 2, 5, 7)),
        np.array([2, -1, 0, 2]),
    )
    for a, b in zip(own(*feeds), other(*feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
