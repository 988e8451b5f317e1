"""Sequences that convolutions read as pictures are stored by rows and columns, if all agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.plan.test_passes import same, stage
from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import INDEX, And, Buffer, Expr, Le, Lt, Select, const
from tilewright.plan.passes.split_positions import split_positions

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


TOKENS, SUM, MADE = (Buffer(n, (48, 4), float32) for n in ("x", "sum", "made"))
MATRIX, TAPS = Buffer("a", (4, 4), float32), Buffer("w", (3, 3), float32)
PICTURE, MEANS = Buffer("y", (6, 8, 4), float32), Buffer("means", (48, 4), float32)


def _blurred(y: Expr, x: Expr, c: Expr, m: Expr, n: Expr) -> Expr:
    row, column = y + m - 1, x + n - 1
    inside = And(
        And(Le(const(0, INDEX), row), Lt(row, const(6, INDEX))),
        And(Le(const(0, INDEX), column), Lt(column, const(8, INDEX))),
    )
    read = MADE[row * 8 + column, c]
    return Select(inside, read, const(0.0, float32)) * TAPS[m, n]


@pytest.mark.parametrize("sums_are", ["inner", "a result", "read by others"])
def test_a_sum_that_a_map_follows_is_split_too(sums_are: str) -> None:
    """Else its result has one axis for two dimensions, and is copied for what follows."""
    made = stage(
        "made",
        reduce_("sum", SUM, (4,), "add", lambda i, c, k: TOKENS[i, k] * MATRIX[k, c]),
        map_("double", MADE, lambda i, c: SUM[i, c] * 2.0),
    )
    steps = [
        made,
        stage("blurred", reduce_("blurred", PICTURE, (3, 3), "add", _blurred)),
    ]
    given, results = [TOKENS, MATRIX, TAPS], [PICTURE]
    if sums_are == "a result":
        results.append(SUM)
    if sums_are == "read by others":
        steps.append(
            stage("halves", map_("halves", MEANS, lambda i, c: SUM[i, c] / 2.0))
        )
        results.append(MEANS)
    after = split_positions(steps, {*given, *results})
    same(steps, after, given, results)
    shapes = {
        o.tensor.name: o.tensor.shape for c in after[0].computations for o in c.outputs
    }
    whole = (48, 4)
    assert shapes == {
        "sum": (6, 8, 4) if sums_are == "inner" else whole,
        "made": (6, 8, 4),
    }


CHANNELED, MIXED = Buffer("made", (6, 8, 4), float32), Buffer("y", (6, 8, 4), float32)
PAIRS = Buffer("w", (4, 2, 3, 3), float32)


def _grouped(y: Expr, x: Expr, j: Expr, k: Expr, m: Expr, n: Expr) -> Expr:
    """The products of a convolution of two channels per group, padded along both sides."""
    row, column = y + m - 1, x + n - 1
    inside = And(
        And(Le(const(0, INDEX), row), Lt(row, const(6, INDEX))),
        And(Le(const(0, INDEX), column), Lt(column, const(8, INDEX))),
    )
    read = CHANNELED[row, column, j // 2 * 2 + k]
    return Select(inside, read, const(0.0, float32)) * PAIRS[j, k, m, n]


def test_channels_of_groups_are_no_positions() -> None:
    """The guard is the bounds of these axes. Split, channels would be two dimensions of what makes
    them, which vectors along all of them need as one."""
    double = map_("double", CHANNELED, lambda y, x, c: MIXED[y, x, c] * 2.0)
    out = Buffer("out", (6, 8, 4), float32)
    mixed = reduce_("mixed", out, (2, 3, 3), "add", _grouped)
    steps = [stage("made", double), stage("mixed", mixed)]
    assert split_positions(steps, {MIXED, PAIRS, out}) == steps
