"""The rules of an accelerator are right, and what a device operator means is what NumPy says."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import InputError
from tilewright.expr.nodes import const
from tilewright.lift.derive import derive
from tilewright.lift.device import operator, operators
from tilewright.lift.infer import infer
from tilewright.lift.interp import interpret
from tilewright.lift.memory import resident
from tilewright.lift.nodes import Lambda, Param, apply
from tilewright.lift.rule import Rule, RuleError
from tilewright.lift.rules.device import Accelerator, rules
from tilewright.lift.trials import check, refuse, values

RULES = rules(Accelerator(vector=4, rows=4, columns=4, chip=90, dtype=int64))
CONDITIONS = [(rule, n) for rule in RULES.values() for n in range(len(rule.when))]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_both_sides_are_equal(rule: Rule, seed: int) -> None:
    check(rule, Random(seed))


@pytest.mark.parametrize(
    ("rule", "n"),
    CONDITIONS,
    ids=[f"{rule.name}: {rule.when[n]}" for rule, n in CONDITIONS],
)
def test_a_condition_that_fails_is_a_refusal(rule: Rule, n: int) -> None:
    refuse(rule, rule.when[n], Random(n))


ORACLES = {
    "VVAdd": lambda a, b: a + b,
    "VVSub": lambda a, b: a - b,
    "VVMul": lambda a, b: a * b,
    "VVMax": np.maximum,
    "VVRelu": lambda a: np.maximum(a, 0),
    "MMAdd": lambda a, b: a + b,
    "MVAdd": lambda a, v: a + v,
    "MVMul": lambda a, v: a @ v,
    "MMMul": lambda a, b: a @ b,
}


@pytest.mark.parametrize("name", operators(int64))
def test_the_meaning_of_an_operator_is_numpys(name: str) -> None:
    schema = operators(int64)[name]
    sizes = (3, 4, 5)[: schema.sizes]
    types = schema.operands(*map(const, sizes))
    params = tuple(Param(f"x{i}", t) for i, t in enumerate(types))
    program = Lambda(params, apply(operator(name, int64, *sizes), *params))
    shapes = [(3, 4), (4, 5)] if name == "MMMul" else [_shape(t) for t in types]
    arrays = [values(shape, Random(i)) for i, shape in enumerate(shapes)]
    (found,) = interpret(program, *arrays)
    np.testing.assert_array_equal(found, ORACLES[name](*arrays))


def _shape(t) -> tuple[int, ...]:  # type: ignore[no-untyped-def]
    from tilewright.lift.sizes import leaves

    return leaves(t)[0].shape


def test_names_say_sizes_and_equal_operators_are_one_node() -> None:
    assert operator("MVMul", float32, 128, 128).name == "MVMul128"
    assert operator("MVMul", float32, 64, 128).name == "MVMul64x128"
    assert operator("VVAdd", float32, 32) is operator("VVAdd", float32, 32)
    with pytest.raises(InputError, match="no operator 'VVDiv'"):
        operator("VVDiv", float32, 32)
    with pytest.raises(InputError, match="1 sizes, not 2"):
        operator("VVAdd", float32, 32, 32)


def test_the_chip_holds_what_is_not_yet_used() -> None:
    """Two operands of an addition are there together; one after the other fit alone."""
    x = Param("x", operators(int64)["VVAdd"].operands(const(4))[0])
    add, relu = operator("VVAdd", int64, 4), operator("VVRelu", int64, 4)
    both = Lambda((x,), add(relu(x), relu(add(x, x))))
    assert infer(both).result is x.type
    wide, narrow = (
        derive(both, rules(Accelerator(4, 4, 4, chip, int64))) for chip in (64, 32)
    )
    one = narrow.apply("to-chip-1", (1, 1))
    two = wide.apply("to-chip-1", (1, 1)).apply("to-chip-1", (1, 2))
    assert (resident(one.program), resident(two.program)) == (32, 64)
    with pytest.raises(RuleError, match="64 bytes are needed in chip, it has 32"):
        one.apply("to-chip-1", (1, 2))
    with pytest.raises(RuleError, match="must not stay in chip memory"):
        one.apply("to-chip-2", (1,))
