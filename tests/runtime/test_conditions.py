"""Conditions on extents: their values, texts, and forms in artifacts."""

import pytest

from tilewright.base.errors import InputError
from tilewright.runtime.conditions import (
    AppliedFunction,
    ExtentCondition,
    check_conditions,
    multiples,
    remaining,
)

TERMS = [
    (AppliedFunction("+", ("n", 2)), 9),
    (AppliedFunction("-", ("n", "m")), 4),
    (AppliedFunction("*", ("n", "m")), 21),
    (AppliedFunction("//", (AppliedFunction("neg", ("n",)), 2)), -4),
    (AppliedFunction("%", (AppliedFunction("neg", ("n",)), 4)), 1),
    (AppliedFunction("/", ("n", 2)), 3.5),
    (AppliedFunction("**", ("n", 2)), 49),
    (AppliedFunction("abs", (AppliedFunction("-", ("m", "n")),)), 4),
    (AppliedFunction("min", ("n", "m", 5)), 3),
    (AppliedFunction("max", ("n", "m", 9)), 9),
    (AppliedFunction("round", (2.5,)), 2),
    (AppliedFunction("round", (AppliedFunction("*", ("n", 25)), -1)), 180),
    (AppliedFunction("trunc", (AppliedFunction("neg", (2.5,)),)), -2),
    (AppliedFunction("floor", (AppliedFunction("neg", (2.5,)),)), -3),
    (AppliedFunction("ceil", (2.5,)), 3),
    (AppliedFunction("sqrt", (AppliedFunction("float", ("n",)),)), 7**0.5),
    (
        AppliedFunction(
            "and", (AppliedFunction("==", ("n", 7)), AppliedFunction("!=", ("m", 7)))
        ),
        True,
    ),
    (
        AppliedFunction(
            "or", (AppliedFunction("<", ("n", 7)), AppliedFunction("<=", ("m", 2)))
        ),
        False,
    ),
    (AppliedFunction("not", (AppliedFunction(">", ("n", "m")),)), False),
    (AppliedFunction(">=", ("n", 7)), True),
]
EXTENTS = {"n": 7, "m": 3}


@pytest.mark.parametrize(("term", "value"), TERMS)
def test_values(term, value):
    assert ExtentCondition(AppliedFunction("==", (term, value))).holds(EXTENTS)
    assert not ExtentCondition(AppliedFunction("!=", (term, value))).holds(EXTENTS)


@pytest.mark.parametrize(("term", "value"), TERMS)
def test_forms_in_artifacts(term, value):
    condition = ExtentCondition(AppliedFunction("==", (term, int(value))))
    assert ExtentCondition.of_json(condition.to_json()) == condition


@pytest.mark.parametrize(
    "data",
    [None, [], ["+"], ["exec", 1], [1, 2], {"n": 1}, ["abs", [None]], [["+"], 1], True],
)
def test_data_that_are_no_condition(data):
    with pytest.raises(ValueError, match="a condition has"):
        ExtentCondition.of_json(data)


def test_data_of_many_calls_in_one_another():
    data = "n"
    for _ in range(500):
        data = ["abs", data]
    with pytest.raises(ValueError, match="nested too deep"):
        ExtentCondition.of_json(data)


@pytest.mark.parametrize(
    "term",
    [
        AppliedFunction(
            "==", (AppliedFunction("%", ("n", AppliedFunction("-", ("m", 3)))), 0)
        ),
        AppliedFunction(">", (AppliedFunction("**", ("n", 10_000)), 0)),
        AppliedFunction(
            ">", (AppliedFunction("sqrt", (AppliedFunction("neg", ("n",)),)), 0)
        ),
        AppliedFunction(
            "==", (AppliedFunction("trunc", (AppliedFunction("*", (1e308, "n")),)), 0)
        ),
        AppliedFunction(">", (AppliedFunction("**", (-8.0, 0.5)), 0)),
        AppliedFunction("==", (AppliedFunction("round", ("n", -(10**5))), 0)),
    ],
)
def test_a_condition_without_a_value_does_not_hold(term):
    assert not ExtentCondition(term).holds(EXTENTS)


def test_operands_after_the_deciding_one_have_no_value():
    divided = AppliedFunction(
        "==", (AppliedFunction("//", (1, AppliedFunction("-", ("n", 7)))), 1)
    )
    zero = AppliedFunction("==", ("n", 7))
    assert ExtentCondition(AppliedFunction("or", (zero, divided))).holds(EXTENTS)
    assert not ExtentCondition(AppliedFunction("and", (divided, zero))).holds(EXTENTS)


def test_text():
    term = AppliedFunction(
        "//", (AppliedFunction("+", (AppliedFunction("+", (-1, "n")), "m")), 2)
    )
    either = AppliedFunction(
        "or",
        (
            AppliedFunction("<", (term, 3)),
            AppliedFunction("not", (AppliedFunction("max", ("n", 1)),)),
        ),
    )
    text = "(((-1 + n + m) // 2) < 3) or (not max(n, 1))"
    assert str(ExtentCondition(either)) == text
    assert (
        str(
            ExtentCondition(AppliedFunction("-", ("n", AppliedFunction("-", ("m", 1)))))
        )
        == "n - (m - 1)"
    )


def test_many_conditions_are_not_compared_with_one_another():
    class Mine(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            compared.append(other)
            return str.__eq__(self, other)

    def less(function, most):
        return ExtentCondition(AppliedFunction(Mine(function), ("n", most)))

    compared = []
    known = [less("<", n) for n in range(10, 1010)]
    assert remaining([*known, ExtentCondition("m")], {"n": 7}) == (
        ExtentCondition("m"),
    )
    assert len(compared) < 10 * len(known)


def test_known_extents():
    greater = ExtentCondition(AppliedFunction(">", ("n", "m")))
    other = ExtentCondition(AppliedFunction("!=", ("m", 7)))
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
        (AppliedFunction("==", (AppliedFunction("%", ("n", 2)), 0)), ("n", 2)),
        (
            AppliedFunction(
                "<=", (AppliedFunction("%", (AppliedFunction("*", (3, "n")), 6)), 0)
            ),
            ("n", 2),
        ),
        (
            AppliedFunction(
                "==", (AppliedFunction("%", (AppliedFunction("*", (4, "n")), 6)), 0)
            ),
            ("n", 3),
        ),
        (AppliedFunction("==", (AppliedFunction("%", ("n", -4)), 0)), ("n", 4)),
        (AppliedFunction("<=", (AppliedFunction("%", ("n", -4)), 0)), None),
        (AppliedFunction("==", (AppliedFunction("%", ("n", 2)), 1)), None),
        (AppliedFunction("!=", (AppliedFunction("%", ("n", 2)), 0)), None),
        (AppliedFunction("==", (AppliedFunction("%", ("n", "m")), 0)), None),
        (
            AppliedFunction(
                "==", (AppliedFunction("%", (AppliedFunction("*", ("m", "n")), 6)), 0)
            ),
            None,
        ),
        (AppliedFunction("==", (AppliedFunction("%", ("n", 0)), 0)), None),
    ],
)
def test_multiples(term, found):
    assert multiples(ExtentCondition(term)) == found
