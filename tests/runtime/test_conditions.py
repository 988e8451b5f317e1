"""Conditions on extents: their values, texts, and forms in artifacts."""

import pytest

from tilewright.base.errors import InputError
from tilewright.runtime.conditions import (
    Apply,
    Condition,
    check_conditions,
    multiples,
    remaining,
)

TERMS = [
    (Apply("+", ("n", 2)), 9),
    (Apply("-", ("n", "m")), 4),
    (Apply("*", ("n", "m")), 21),
    (Apply("//", (Apply("neg", ("n",)), 2)), -4),
    (Apply("%", (Apply("neg", ("n",)), 4)), 1),
    (Apply("/", ("n", 2)), 3.5),
    (Apply("**", ("n", 2)), 49),
    (Apply("abs", (Apply("-", ("m", "n")),)), 4),
    (Apply("min", ("n", "m", 5)), 3),
    (Apply("max", ("n", "m", 9)), 9),
    (Apply("round", (2.5,)), 2),
    (Apply("trunc", (Apply("neg", (2.5,)),)), -2),
    (Apply("floor", (Apply("neg", (2.5,)),)), -3),
    (Apply("ceil", (2.5,)), 3),
    (Apply("sqrt", (Apply("float", ("n",)),)), 7**0.5),
    (Apply("and", (Apply("==", ("n", 7)), Apply("!=", ("m", 7)))), True),
    (Apply("or", (Apply("<", ("n", 7)), Apply("<=", ("m", 2)))), False),
    (Apply("not", (Apply(">", ("n", "m")),)), False),
    (Apply(">=", ("n", 7)), True),
]
EXTENTS = {"n": 7, "m": 3}


@pytest.mark.parametrize(("term", "value"), TERMS)
def test_values(term, value):
    assert Condition(Apply("==", (term, value))).holds(EXTENTS)
    assert not Condition(Apply("!=", (term, value))).holds(EXTENTS)


@pytest.mark.parametrize(("term", "value"), TERMS)
def test_forms_in_artifacts(term, value):
    condition = Condition(Apply("==", (term, int(value))))
    assert Condition.of_json(condition.to_json()) == condition


@pytest.mark.parametrize(
    "data",
    [None, [], ["+"], ["exec", 1], [1, 2], {"n": 1}, ["abs", [None]], [["+"], 1], True],
)
def test_data_that_are_no_condition(data):
    with pytest.raises(ValueError, match="a condition has"):
        Condition.of_json(data)


def test_data_of_many_calls_in_one_another():
    data = "n"
    for _ in range(500):
        data = ["abs", data]
    with pytest.raises(ValueError, match="a condition has"):
        Condition.of_json(data)


@pytest.mark.parametrize(
    "term",
    [
        Apply("==", (Apply("%", ("n", Apply("-", ("m", 3)))), 0)),
        Apply(">", (Apply("**", ("n", 10_000)), 0)),
        Apply(">", (Apply("sqrt", (Apply("neg", ("n",)),)), 0)),
        Apply("==", (Apply("trunc", (Apply("*", (1e308, "n")),)), 0)),
        Apply(">", (Apply("**", (-8.0, 0.5)), 0)),
    ],
)
def test_a_condition_without_a_value_does_not_hold(term):
    assert not Condition(term).holds(EXTENTS)


def test_operands_after_the_deciding_one_have_no_value():
    divided = Apply("==", (Apply("//", (1, Apply("-", ("n", 7)))), 1))
    zero = Apply("==", ("n", 7))
    assert Condition(Apply("or", (zero, divided))).holds(EXTENTS)
    assert not Condition(Apply("and", (divided, zero))).holds(EXTENTS)


def test_text():
    term = Apply("//", (Apply("+", (Apply("+", (-1, "n")), "m")), 2))
    either = Apply(
        "or", (Apply("<", (term, 3)), Apply("not", (Apply("max", ("n", 1)),)))
    )
    text = "(((-1 + n + m) // 2) < 3) or (not max(n, 1))"
    assert str(Condition(either)) == text
    assert str(Condition(Apply("-", ("n", Apply("-", ("m", 1)))))) == "n - (m - 1)"


def test_known_extents():
    greater = Condition(Apply(">", ("n", "m")))
    other = Condition(Apply("!=", ("m", 7)))
    (left,) = remaining([greater, other], {"m": 3})
    assert str(left) == "n > 3"
    assert remaining([greater, other], {}) == (greater, other)
    with pytest.raises(InputError, match="m is 7, and the model is made for m != 7"):
        remaining([greater, other], {"m": 7})
    with pytest.raises(InputError, match="n is 3, m is 7, and the model is made"):
        check_conditions([greater], {"n": 3, "m": 7})


@pytest.mark.parametrize(
    ("term", "found"),
    [
        (Apply("==", (Apply("%", ("n", 2)), 0)), ("n", 2)),
        (Apply("<=", (Apply("%", (Apply("*", (3, "n")), 6)), 0)), ("n", 2)),
        (Apply("==", (Apply("%", (Apply("*", (4, "n")), 6)), 0)), ("n", 3)),
        (Apply("==", (Apply("%", ("n", 2)), 1)), None),
        (Apply("!=", (Apply("%", ("n", 2)), 0)), None),
        (Apply("==", (Apply("%", ("n", "m")), 0)), None),
        (Apply("==", (Apply("%", (Apply("*", ("m", "n")), 6)), 0)), None),
        (Apply("==", (Apply("%", ("n", 0)), 0)), None),
    ],
)
def test_multiples(term, found):
    assert multiples(Condition(term)) == found
