"""A rule of one's own is checked when it is made, and refused with a counterexample."""

from __future__ import annotations

import pytest

from tilewright import lift
from tilewright.base.dtypes import float32
from tilewright.base.errors import TilewrightError
from tilewright.lang.lift import Join, Map, Reduce, Split, f32, fun, neg, relu
from tilewright.lift.conditions import associative, divides, neutral
from tilewright.lift.types import Scalar

H = lift.holes
NUMBERS = H.term("xs", H.arr(H.s, H.n))
FLOATS = H.term("xs", H.arr(Scalar(float32), H.n))


@pytest.mark.parametrize("xs", [NUMBERS, FLOATS], ids=["integers", "floats"])
def test_a_wrong_rule_is_refused_with_a_counterexample(xs) -> None:
    with pytest.raises(TilewrightError) as error:
        lift.rule("negate", xs | Map(relu), xs | Map(neg))
    assert error.value.code == "TW-LIFT-WRONG"
    said = str(error.value)
    assert "rule negate: xs | Map(relu) => xs | Map(neg)" in said
    assert "Map(relu), " in said and "] is [" in said and "it becomes" in said


def test_without_a_condition_that_it_needs_a_rule_is_refused() -> None:
    """A sum in parts is the sum where the operator is associative and starts from its neutral."""
    f, z = H.fun("f", H.b, H.b, H.b), H.term("z", H.b)
    xs = H.term("xs", H.arr(H.b, H.n))
    sides = xs | Reduce(f, z), xs | Split(H.m) | Map(Reduce(f, z)) | Join | Reduce(f, z)
    whole = [divides(H.m, H.n), associative(f, H.b), neutral(z, f, H.b)]
    assert lift.rule("parts", *sides, whole).parameters
    with pytest.raises(TilewrightError) as error:
        lift.rule("parts", *sides, whole[:2])
    assert error.value.code == "TW-LIFT-WRONG"


def test_a_right_rule_applies() -> None:
    twice = lift.rule("relu-relu", FLOATS | Map(relu) | Map(relu), FLOATS | Map(relu))
    program = fun(lambda x: x | Map(relu) | Map(relu), f32[8])
    made = lift.derive(program, {**lift.RULES, twice.name: twice}).apply("relu-relu")
    assert str(made).count("Map(relu)") == 3


def test_a_rule_that_applies_to_nothing_is_refused() -> None:
    with pytest.raises(
        TilewrightError, match="no random program that it applies to was found"
    ):
        lift.rule("same", NUMBERS | Map(relu), NUMBERS | Map(relu))
