"""Which values are stored channel-last: those around convolutions, but no stacks of matrices."""

from __future__ import annotations

import pytest

from tilewright.base.dtypes import float32
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.plan.layout import choose

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
