"""The machine's own rules are right: both sides are equal on random instances."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.expr.nodes import const
from tilewright.lift.device import operator
from tilewright.lift.infer import infer
from tilewright.lift.interp import interpret
from tilewright.lift.nodes import Lambda, Param, apply
from tilewright.lift.rule import Rule
from tilewright.lift.rules import RULES as LIFT
from tilewright.lift.rules import device
from tilewright.lift.sites import site
from tilewright.lift.sizes import leaves
from tilewright.lift.trials import instance, refuse
from tilewright.targets.npu import rules
from tilewright.targets.npu.mapping_rules import schemas

KNOWN = {**LIFT, **device.rules(device.Accelerator(0, 0, 0, 0))}
RULES = {n: r for n, r in rules(0).items() if n not in KNOWN}
CONDITIONS = [(rule, n) for rule in RULES.values() for n in range(len(rule.when))]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("seed", range(2))
def test_both_sides_are_equal(rule: Rule, seed: int) -> None:
    rng = Random(seed)
    made = next(found for _ in range(300) if (found := instance(rule, rng)) is not None)
    after = rule.apply(site(made.program, made.path), made.sizes)
    assert isinstance(after, Lambda)
    assert infer(after).result is infer(made.program).result
    numbers = np.random.default_rng(seed)
    shapes = [leaf.shape for t in infer(after).params for leaf in leaves(t)]
    arrays = [numbers.integers(1, 9, shape).astype(np.float32) for shape in shapes]
    with np.errstate(divide="ignore"):
        sides = [interpret(program, *arrays) for program in (made.program, after)]
    for left, right in zip(*sides, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


@pytest.mark.parametrize(
    ("rule", "n"),
    CONDITIONS,
    ids=[f"{rule.name}: {rule.when[n]}" for rule, n in CONDITIONS],
)
def test_a_condition_that_fails_is_a_refusal(rule: Rule, n: int) -> None:
    refuse(rule, rule.when[n], Random(n))


ORACLES = {
    "VVExp": np.exp,
    "VVRecip": lambda x: 1 / x,
    "VReduceAdd": lambda x: x.sum(keepdims=True),
    "VReduceMax": lambda x: x.max(keepdims=True),
}


@pytest.mark.parametrize("name", ORACLES)
def test_the_meaning_of_an_operator_is_numpys(name: str) -> None:
    x = Param("x", schemas()[name].operands(const(5))[0])
    meaning = schemas()[name].at(const(5)).meaning
    values = np.linspace(0.5, 3, 5, dtype=np.float32)
    (found,) = interpret(Lambda((x,), apply(meaning, x)), values)
    np.testing.assert_allclose(found, ORACLES[name](values), rtol=1e-6)
    assert operator("VVAdd", float32, 5).name == "VVAdd5"
