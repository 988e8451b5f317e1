"""Rules that take a reduction apart believe no operator and no start that they cannot prove."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright.lang import lift
from tilewright.lang.lift import Join, Map, PartRed, Reduce, Split, f32, fun, i64
from tilewright.lift.derive import places
from tilewright.lift.interp import interpret
from tilewright.lift.rule import RuleError

INT = np.iinfo(np.int64)
NEUTRAL = {
    "add": 0, "mul": 1, "max": INT.min, "min": INT.max, "and_": -1, "or_": 0, "xor": 0,
    "circle": 0, "shifted": -1,
}  # fmt: skip
OPERATORS: dict[str, Any] = {
    **{
        name: getattr(lift, name)
        for name in ("add", "mul", "max", "min", "and_", "or_", "xor")
    },
    "circle": lambda a, b: a + b + a * b,
    "shifted": lambda a, b: a + b + 1,
    "sub": lift.sub,
    "second": lambda a, b: b,
    "horner": lambda a, b: a * 2 + b,
    "squares": lambda a, b: a + b * b,
}
TREES = ("reduce-split", "reduce-columns", "partial-reduce", "partial-reduce-order")
X = np.array([3, -1, 4, 1, -5, 9, 2, -6])


def programs(op: Any, start: int) -> tuple[Any, ...]:
    return (
        fun(lambda x: x | Reduce(op, start), i64[8]),
        fun(lambda x: x | PartRed(op, start, 4) | Reduce(op, start), i64[8]),
        fun(lambda x: x | Split(4) | Map(Reduce(op, start)) | Join, i64[8]),
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_reduction_is_taken_apart_only_where_that_is_right(operator: str) -> None:
    applied = set()
    rules = [r for r in lift.RULES.values() if "reduce" in r.name]
    for start in (0, 1, -1, 3, INT.min, INT.max):
        for program in programs(OPERATORS[operator], start):
            (wanted,) = interpret(program, X)
            for rule, at in product(rules, list(places(program))):
                for sizes in product((2, 4), repeat=len(rule.parameters)):
                    try:
                        after = rule.apply(
                            at, {v.name: n for v, n in zip(rule.parameters, sizes)}
                        )
                    except RuleError:
                        continue
                    applied.add((rule.name, start))
                    np.testing.assert_array_equal(interpret(after, X)[0], wanted)
    starts = {start for name, start in applied if name in TREES}
    assert starts == ({NEUTRAL[operator]} if operator in NEUTRAL else set())


@pytest.mark.parametrize("start", ["inf", "-inf", "nan"])
def test_no_neutral_element_is_infinite(start: str) -> None:
    op = lambda a, b: a + b + a * b  # noqa: E731
    program = fun(lambda x: x | Reduce(op, float(start)), f32[8])
    with pytest.raises(RuleError, match="neutral"):
        lift.RULES["reduce-split"].apply(next(places(program)), {"m": 2})
