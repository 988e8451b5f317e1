"""Terms of formulas: which operations and constants their arithmetic adds."""

import numpy as np
import pytest

from tilewright.base.dtypes import bool_, float16, float32, int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment

X = Value("x", float16, (2, 3))
Y = Value("y", float16, (3,))

FORMULAS = {
    "values and numbers beside a term": (
        lambda x: (x * Y + 1) / 2,
        ["Mul", "Add", "Div"],
    ),
    "a number on the left": (lambda x: 1 - (2 / (3 * x)), ["Mul", "Div", "Sub"]),
    "comparisons and logic": (
        lambda x: ((x < Y) & (x >= 0)) | ~(x <= 1),
        ["Less", "GreaterOrEqual", "And", "LessOrEqual", "Not", "Or"],
    ),
    "unary": (lambda x: -abs(x).op("Sqrt"), ["Abs", "Sqrt", "Neg"]),
    "a choice": (lambda x: (x > Y).chosen(x, 0), ["Greater", "Where"]),
    "a choice between a number and a value": (
        lambda x: x.equals(Y).chosen(0, Y),
        ["Equal", "Where"],
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_arithmetic_adds_operators_in_the_order_of_evaluation(name):
    formula, expected = FORMULAS[name]
    f = Fragment("terms", {})
    found = formula(f.term(X)).value
    assert [op.op_type for op in f.operations] == expected
    assert found is f.operations[-1].outputs[0]
    # A number has the type of the term beside it, so that the result has it, too.
    assert {a.dtype for a in f.constants.values()} <= {np.dtype(np.float16)}
    assert found.dtype in (float16, bool_)
    assert found.extents == (2, 3)


def test_a_cast_to_the_same_type_adds_nothing():
    f = Fragment("terms", {})
    assert f.term(X).cast(float16).value is X
    assert f.term(X).cast(float32).value.dtype is float32
    assert f.cast(Y, int64).dtype is int64
    assert [op.op_type for op in f.operations] == ["Cast", "Cast"]


def test_parts_and_axes():
    f = Fragment("parts", {})
    first, second = f.split(X, [1, 2], axis=1)
    assert (first.extents, second.extents) == ((2, 1), (2, 2))
    assert f.transpose(X, 1, 0).extents == (3, 2)
    assert f.squeeze(f.unsqueeze(X, 0, 3), 3).extents == (1, 2, 3)
