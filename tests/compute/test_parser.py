"""Computations from their text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from tilewright.base import dtypes as d
from tilewright.base.errors import InputError
from tilewright.compute.build import map_, reduce_
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import Computation, Output
from tilewright.compute.parser import parse, parse_reducer
from tilewright.compute.printer import PLAIN, show, show_reducer
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.nodes import Buffer, Call, Const, Expr, Sub, Var, const
from tilewright.ir.node import transform
from tilewright.testing.computations import computations

F = d.float32
X, Y = Buffer("x", (4, 8), F), Buffer("y", (4,), F)


def again(c: Computation) -> Computation:
    """The Computation of its text."""
    buffers = {b.name: b for b in (*c.inputs, *(o.tensor for o in c.outputs))}
    operators = (
        {} if c.reducer is None else {c.reducer.name: parse_reducer_of(c.reducer)}
    )
    return parse(show(c).split("\n"), buffers, {}, operators, "text")


def parse_reducer_of(op: Reducer) -> Reducer:
    return parse_reducer(show_reducer(op), "text")


def as_sums(c: Computation) -> Computation:
    """With `x + (-1)` for `x - 1`, which prints alike."""

    def one(e: Any) -> Any:
        signed = isinstance(e, Sub) and isinstance(e.rhs, Const) and e.dtype.is_int
        return e.lhs + const(-e.rhs.value, e.rhs.type) if signed else e

    outputs = (
        Output(
            o.tensor, tuple(transform(i, one) for i in o.index), transform(o.value, one)
        )
        for o in c.outputs
    )
    return replace(c, outputs=tuple(outputs))


def alike(one: Computation, two: Computation) -> None:
    params = [*dict.fromkeys((*one.inputs, *(o.tensor for o in one.outputs)))]
    assert show(one) == show(two)
    assert canonical([as_sums(one)], params) == canonical([as_sums(two)], params)


@settings(max_examples=100)
@given(computations())
def test_what_is_printed_is_read_back(c: Computation) -> None:
    alike(c, again(c))


def test_what_is_shared_stays_shared() -> None:
    def value(i: Expr, k: Expr) -> Expr:
        v: Expr = X[i, k]
        for _ in range(20):
            v = v * v + v
        return v

    c = reduce_("powers", Y, (8,), "max", value)
    text = show(c)
    assert len(text) < 2000 and " let t0 = " in text
    alike(c, again(c))


def test_short_values_are_written_out() -> None:
    c = map_(
        "gelu", Y, lambda i: (X[i, 0] * 0.5) * (Call("erf", (X[i, 0] * 0.5,)) + 1.0)
    )
    assert "let" not in show(c) and PLAIN > 8
    alike(c, again(c))


def test_a_name_is_one_variable_in_a_group() -> None:
    c = map_("double", Y, lambda i: X[i, 0] * 2.0)
    variables: dict[str, Var] = {}
    one, two = (
        parse(show(c).split("\n"), {"x": X, "y": Y}, variables, {}, "")
        for _ in range(2)
    )
    assert one.dims[0].var is two.dims[0].var
    assert again(c).dims[0].var is not one.dims[0].var


@pytest.mark.parametrize("last", [False, True])
def test_operators_of_several_components(last: bool) -> None:
    op = arg_reducer("argmin", F, d.int64, last)
    assert parse_reducer_of(op).does_as(op)


def test_an_operator_that_does_not_commute() -> None:
    a, b = Var("a", F), Var("b", F)
    first = Reducer(
        "first", (a,), (b,), ((a + 1.0) * 2.0,), (const(0.0, F),), commutative=False
    )
    found = parse_reducer_of(first)
    assert (
        show_reducer(first)
        == "first(a: f32)(b: f32) = ((a + 1.0) * 2.0) from (0.0) in order"
    )
    assert found.does_as(first) and not found.commutative
    assert parse_reducer_of(reducer("add", F)).commutative


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("z[i", "x[i", r"line 4: expected a buffer that was declared, not 'z'"),
        ("x1 + 1.0", "x0 + 1.0", "line 3: expected an expression, found 'x1'"),
        ("(cc, cc, cc)", "(cc)", "one operator for each of 1 dimensions, found 3"),
        ("(pw(best))", "(cc)", "unknown operator 'best'"),
        ("i < n", "i < 4", "line 1: expected a number, found 'n'"),
    ],
)
def test_another_text_is_refused(wrong: str, right: str, message: str) -> None:
    c = map_("next", Y, lambda i: X[i, 0] + 1.0)
    text = show(c)
    assert right in text
    with pytest.raises(InputError, match=message):
        parse(text.replace(right, wrong).split("\n"), {"x": X, "y": Y}, {}, {}, "text")
