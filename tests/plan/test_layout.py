"""Which values are stored channel-last: those around convolutions, but no stacks of matrices and no
maps with few channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright.base.dtypes import DType, float16, float32
from tilewright.driver.planning import make_plan
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.plan.layout import choose
from tilewright.targets.registry import target

LAST = (0, 2, 3, 1)


def value(name: str, *shape: int) -> Value:
    return Value(name, float32, shape)


def after_relu(x: Value, consumer: str, other: Value, result: Value) -> Graph:
    """A convolution and another operator of the same operand, which a Relu makes."""
    filter, given = value("filter", x.extents[1], 1, 3, 1), value("given", *x.extents)
    y, sum = value("y", *x.extents), value("sum", *result.extents)
    depthwise = {"group": x.extents[1], "pads": [1, 0, 1, 0]}
    operations = (
        Operation("Relu", (given,), (x,), {}, "", 21, "relu"),
        Operation("Conv", (x, filter), (y,), depthwise, "", 21, "conv"),
        Operation(consumer, (x, other), (result,), {}, "", 21, "consumer"),
        Operation("Relu", (result,), (sum,), {}, "", 21, "last"),
    )
    return Graph("g", (given, filter, other), (y, sum), operations)


def test_operands_of_a_product_of_stacks_remain_row_major() -> None:
    x = value("x", 1, 4, 6, 6)
    graph = after_relu(x, "MatMul", value("b", 1, 4, 6, 5), value("c", 1, 4, 6, 5))
    assert choose(graph) == {}


def test_the_layout_does_not_spread_to_a_stack() -> None:
    """A map of a convolution is added to the operand of a product."""
    x, filter = value("x", 1, 4, 6, 6), value("filter", 4, 4, 1, 1)
    y, z, given = (value(n, 1, 4, 6, 6) for n in ("y", "z", "given"))
    b, c = value("b", 1, 4, 6, 5), value("c", 1, 4, 6, 5)
    operations = (
        Operation("Conv", (x, filter), (y,), {}, "", 21, "conv"),
        Operation("Add", (y, given), (z,), {}, "", 21, "sum"),
        Operation("MatMul", (z, b), (c,), {}, "", 21, "product"),
    )
    graph = Graph("g", (x, filter, given, b), (c,), operations)
    assert choose(graph) == {y: LAST}


@pytest.mark.parametrize("stack", ["operand", "result"])
def test_a_convolution_that_makes_or_reads_a_stack_leaves_it(stack: str) -> None:
    """Nor does it begin a layout on its other side."""
    x, y, z = (value(name, 1, 6, 6, 6) for name in "xyz")
    filter, b, given = (
        value("filter", 6, 6, 1, 1),
        value("b", 1, 6, 6, 6),
        value("g", 1, 6, 6, 6),
    )
    relu, conv = Operation("Relu", (given,), (x,), {}, "", 21, "relu"), "Conv"
    if stack == "operand":
        rest = (
            Operation(conv, (x, filter), (y,), {}, "", 21, "conv"),
            Operation("MatMul", (y, b), (z,), {}, "", 21, "product"),
        )
    else:
        rest = (
            Operation("MatMul", (x, b), (y,), {}, "", 21, "product"),
            Operation(conv, (y, filter), (z,), {}, "", 21, "conv"),
        )
    last = Operation("Relu", (z,), (value("end", 1, 6, 6, 6),), {}, "", 21, "last")
    graph = Graph("g", (given, filter, b), last.outputs, (relu, *rest, last))
    assert choose(graph) == {}


ONE = [
    pytest.param((6, 5), id="a matrix that all share"),
    pytest.param((1, 1, 6, 5), id="a stack of one matrix"),
]


@pytest.mark.parametrize("shape", ONE)
def test_a_matrix_that_all_share_numbers_nothing(shape: tuple[int, ...]) -> None:
    x = value("x", 1, 4, 6, 6)
    graph = after_relu(x, "MatMul", value("b", *shape), value("c", 1, 4, 6, 5))
    assert choose(graph)[x] == LAST


def test_an_operator_that_multiplies_no_matrices_leaves_the_layout() -> None:
    x, c = value("x", 1, 4, 6, 6), value("c", 1, 4, 6, 6)
    graph = after_relu(x, "Add", value("b", 1, 4, 6, 6), c)
    assert choose(graph)[x] == choose(graph)[c] == LAST


def test_the_second_axis_of_three_is_one_of_rows() -> None:
    x, filter = value("x", 2, 4, 6), value("filter", 4, 1, 3)
    given, b = value("given", 2, 4, 6), value("b", 2, 6, 5)
    y, c = value("y", 2, 4, 6), value("c", 2, 4, 5)
    depthwise = {"group": 4, "pads": [1, 1]}
    operations = (
        Operation("Relu", (given,), (x,), {}, "", 21, "relu"),
        Operation("Conv", (x, filter), (y,), depthwise, "", 21, "conv"),
        Operation("MatMul", (x, b), (c,), {}, "", 21, "product"),
    )
    assert choose(Graph("g", (given, filter, b), (y, c), operations)) == {x: (0, 2, 1)}


def narrowed(
    channels: int = 2,
    dtype: DType = float32,
    taps: tuple[int, int] = (3, 3),
    between: str = "",
) -> tuple[Graph, Value, Value]:
    """A convolution's operand x, of 6 channels, and its result y, which a Relu takes last; between
    them may be another operator."""
    given, x = (Value(n, dtype, (1, 6, 8, 8)) for n in ("given", "x"))
    m, y, z = (Value(n, dtype, (1, channels, 8, 8)) for n in "myz")
    filter = Value("filter", dtype, (channels, 6, *taps))
    pads = {"pads": [taps[0] // 2, taps[1] // 2] * 2}
    relu, conv = Operation("Relu", (given,), (x,), {}, "", 21, "relu"), "Conv"
    if between:
        operations = (
            Operation(conv, (x, filter), (m,), pads, "", 21, "conv"),
            Operation(between, (m, m), (y,), {}, "", 21, "between"),
        )
    else:
        operations = (Operation(conv, (x, filter), (y,), pads, "", 21, "conv"),)
    last = Operation("Relu", (y,), (z,), {}, "", 21, "last")
    return Graph("g", (given, filter), (z,), (relu, *operations, last)), x, y


@pytest.mark.parametrize("taps", [(3, 3), (1, 7)])
def test_a_map_of_few_channels_remains_row_major(taps: tuple[int, int]) -> None:
    graph, x, y = narrowed(taps=taps)
    assert choose(graph) == choose(graph, few=1) == {x: LAST, y: LAST}
    assert choose(graph, few=2) == {x: LAST}


NOT_NARROW = [
    pytest.param({"channels": 3}, id="more channels"),
    pytest.param({"dtype": float16}, id="halves, of which a vector has more"),
    pytest.param({"taps": (1, 1)}, id="no windows"),
    pytest.param({"taps": (1, 1), "between": "Mul"}, id="no windows, and a product"),
]


@pytest.mark.parametrize("given", NOT_NARROW)
def test_other_maps_remain_channel_last(given: dict[str, Any]) -> None:
    graph, _, y = narrowed(**given)
    assert choose(graph, few=2)[y] == LAST


def test_weights_of_unknown_extents_may_have_windows() -> None:
    graph, x, y = narrowed(taps=(1, 1))
    given, filter = graph.inputs
    unknown = Value(filter.name, filter.dtype, None)
    relu, conv, last = graph.operations
    conv = replace(conv, inputs=(x, unknown))
    asked = Graph("g", (given, unknown), graph.outputs, (relu, conv, last))
    assert choose(graph, few=2) == {x: LAST, y: LAST}
    assert choose(asked, few=2) == {x: LAST}


def test_what_a_window_takes_from_points_is_narrow_again() -> None:
    graph, _, y = narrowed(taps=(1, 1))
    *others, last = graph.operations
    end, m = value("end", 1, 2, 1, 1), value("m", 1, 2, 1, 1)
    pool = Operation("GlobalMaxPool", (y,), (m,), {}, "", 21, "pool")
    last = Operation("Relu", (m,), (end,), {}, "", 21, "last")
    pooled = Graph("g", graph.inputs, (end,), (*others, pool, last))
    assert choose(pooled, few=2).keys() & {y, m} == {y}


@pytest.mark.parametrize(
    ("mcpu", "few"), [("x86-64-v3", 4), ("znver4", 8), ("cascadelake", 8)]
)
def test_few_channels_fill_half_a_vector_at_most(mcpu: str, few: int) -> None:
    """And a plan is made with them."""
    machine = target("cpu", mcpu)
    assert machine.plan_costs.few_channels == few
    for channels, order in ((few, (1, few, 8, 8)), (few + 1, (1, 8, 8, few + 1))):
        graph, _, y = narrowed(channels)
        plan = make_plan(graph, machine, fusion=False)
        assert plan.buffers[y].shape == order
