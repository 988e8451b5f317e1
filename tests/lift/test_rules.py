"""Every rule of Lift is right, and none asks for more than it must.

Both sides of a rule are interpreted on random well-typed instances, integers exactly; and for each
side condition there are instances that break it alone and are refused.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtypes import int64
from tilewright.lift import laws
from tilewright.lift.lengths import array
from tilewright.lift.nodes import Builtin, Fill, Literal, Map, Param, Zip, as_fun
from tilewright.lift.rule import Rule, RuleError, table
from tilewright.lift.rules import FAMILIES, RULES
from tilewright.lift.scalars import user_fun
from tilewright.lift.trials import check, refuse
from tilewright.lift.types import Scalar, TupleType

INT = Scalar(int64)
SEEDS = st.integers(0, 2**32 - 1)
CONDITIONS = [(rule, n) for rule in RULES.values() for n in range(len(rule.when))]


def test_every_rule_can_be_shown() -> None:
    """Types that a rule leaves open have names."""
    for rule in RULES.values():
        assert repr(rule).startswith(f"Rule(name={rule.name!r}")
    assert any("?a[" in repr(rule) for rule in RULES.values())


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS)
def test_both_sides_are_equal(rule: Rule, seed: int) -> None:
    check(rule, Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_both_sides_are_equal_many_times(rule: Rule, seed: int) -> None:
    check(rule, Random(seed))


@pytest.mark.parametrize(
    ("rule", "n"),
    CONDITIONS,
    ids=[f"{rule.name}: {rule.when[n]}" for rule, n in CONDITIONS],
)
@settings(max_examples=2, deadline=None)
@given(seed=SEEDS)
def test_a_condition_that_fails_is_a_refusal(rule: Rule, n: int, seed: int) -> None:
    refuse(rule, rule.when[n], Random(seed))


def test_names_are_unique_and_the_table_has_a_row_for_each() -> None:
    rules = [rule for family in FAMILIES.values() for rule in family]
    assert len(RULES) == len(rules)
    assert len(table(rules).splitlines()) == len(rules)


def test_a_wrong_rule_is_caught() -> None:
    from tilewright.lift.nodes import Drop, Take
    from tilewright.lift.rules.vocabulary import a, arr, m, n, term

    xs = term("xs", arr(a, n))
    wrong = Rule("wrong", xs | Drop(m) | Take(n - m), xs | Take(n - m) | Drop(n - n))
    with pytest.raises(RuleError):
        for seed in range(20):
            check(wrong, Random(seed))


# -- operators


ADD, SUB, MAX = Builtin("add"), Builtin("sub"), Builtin("max")
AFFINE = as_fun(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]))
PAIR = TupleType((INT, INT))
POINTWISE = as_fun(lambda x, y: Zip()(x, y) | Map(ADD))
TIMES_TWO = user_fun("f", lambda x, y: x * y * 2, "int64", "int64")
MIXED = user_fun("g", lambda x, y: x * y + x, "int64", "int64")


@pytest.mark.parametrize(
    ("op", "of", "associative", "commutative"),
    [
        (ADD, INT, True, True),
        (MAX, INT, True, True),
        (SUB, INT, False, False),
        (as_fun(lambda x, y: x), INT, True, False),
        (as_fun(lambda x, y: x + y + x * y), INT, True, True),
        (AFFINE, PAIR, True, False),
        (TIMES_TWO, INT, True, True),
        (MIXED, INT, False, False),
        (POINTWISE, array(INT, 5), True, True),
        (as_fun(lambda x, y: Zip()(x, y) | Map(SUB)), array(INT, 5), False, False),
    ],
    ids=[
        "add",
        "max",
        "sub",
        "first",
        "circle",
        "affine",
        "2xy",
        "xy+x",
        "arrays",
        "arrays-sub",
    ],
)
def test_what_is_proved_of_operators(op, of, associative, commutative) -> None:  # type: ignore[no-untyped-def]
    assert laws.associative(op, of) is associative
    assert laws.commutative(op, of) is commutative


def test_neutral_elements() -> None:
    zero, one = Literal(0, int64), Literal(1, int64)
    assert laws.neutral(zero, ADD, INT)
    assert not laws.neutral(one, ADD, INT)
    assert not laws.neutral(Param("z", INT), ADD, INT)
    assert laws.neutral(Fill(zero, array(INT, 5).length), POINTWISE, array(INT, 5))  # type: ignore[attr-defined]
    assert laws.neutral_of(ADD, INT) is zero
    assert laws.neutral_of(SUB, INT) is None
