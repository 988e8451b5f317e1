"""Rules that follow from axioms: which do, and that wrong ones do not."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.graph.rules.axioms import AXIOMS
from tilewright.graph.rules.check import check
from tilewright.graph.rules.patterns import onnx, tensors
from tilewright.graph.rules.prove import prove
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.rules.substitutions.motion import joined, transposed
from tilewright.graph.rules.substitutions.products import one_number

a, b, c, d = tensors("a b c d")
relu = onnx.Relu
OWN = [axiom for axiom in AXIOMS if axiom not in SUBSTITUTIONS]


@pytest.mark.parametrize("axiom", OWN, ids=lambda r: r.name)
def test_every_axiom_is_right(axiom: Rule) -> None:
    check(axiom, once=True, instances=40)


def turned(x: Any) -> Any:
    return transposed(x, [1, 0])


EQUAL = [
    (a @ b + a @ c, a @ (c + b)),
    ((a @ b) @ (c @ d), a @ ((b @ c) @ d)),
    (turned(turned(a) @ b), turned(b) @ a),
    (a * b - a * c, (b - c) * a),
    (turned(a @ b + c), turned(b) @ turned(a) + turned(c)),
    (joined(a, b, at=-2) @ (c + d), joined(a @ (c + d), b @ c + b @ d, at=-2)),
    (
        relu(joined(a, b, at=0) + joined(c, d, at=0)),
        joined(relu(a + c), relu(d + b), at=0),
    ),
    ((a * 2) @ b, a @ (2 * b)),
    (onnx.Neg(a - b) * c, b * c - c * a),
]
# Each holds under a condition of an axiom, or is what a wrong one would give.
DIFFERENT = [
    ((a * c) @ b, a @ (b * c)),
    ((a @ b) * c, (a * c) @ b),
    (a @ b, b @ a),
    (a - b, b - a),
    (a * b + c, (a + c) * b),
    (relu(a + b), relu(a) + relu(b)),
    (joined(a, b, at=0) @ c, joined(a @ c, b @ c, at=-2)),
    (joined(a, b, at=-1) @ c, joined(a @ c, b @ c, at=-1)),
    (joined(a, b, at=0), joined(b, a, at=0)),
    (transposed(a @ b, [0, 1]), transposed(b, [0, 1]) @ transposed(a, [0, 1])),
    (turned(a @ b), turned(a) @ turned(b)),
    (turned(relu(a)), relu(a)),
    (a * 2, a * 3),
]


@pytest.mark.parametrize(("left", "right"), EQUAL, ids=str)
def test_what_follows_is_proved(left: Any, right: Any) -> None:
    assert prove(Rule("r", left, right)) is not None


@pytest.mark.parametrize(("left", "right"), DIFFERENT, ids=str)
def test_what_does_not_follow_is_not_proved(left: Any, right: Any) -> None:
    assert prove(Rule("r", left, right)) is None


def test_a_number_is_one_by_a_condition_alone() -> None:
    sides = (a @ b) * c, a @ (b * c)
    assert prove(Rule("r", *sides)) is None
    assert prove(Rule("r", *sides, when=[one_number(c)])) is not None


def test_without_an_axiom_what_needs_it_is_not_proved() -> None:
    rule = Rule("r", a @ b + a @ c, a @ (b + c))
    assert prove(rule) == ("matrix-times-a-sum",)
    others = [axiom for axiom in AXIOMS if axiom.name != "matrix-times-a-sum"]
    assert prove(rule, others) is None


def test_which_substitutions_are_proved(golden: Any) -> None:
    """The others compute a constant, or count axes: they are checked alone."""
    lines = []
    for rule in SUBSTITUTIONS:
        axioms = prove(rule)
        how = "checked" if axioms is None else f"proved: {', '.join(axioms) or 'order'}"
        lines.append(f"{rule.name}: {how}")
    golden("substitutions_proved", "\n".join(lines))
