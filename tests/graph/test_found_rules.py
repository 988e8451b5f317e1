"""The substitutions that enumeration found, and the enumerator itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import substitutions as enumerator
from benchmarks.substitutions import Formula, applied
from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError
from tilewright.graph import interp
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.check import check
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.prove import prove
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.rules.substitutions.found import found, parsed

A, B = Formula("a"), Formula("b")


@pytest.mark.slow
@pytest.mark.parametrize("rule", found(), ids=lambda r: r.name)
def test_every_found_rule_is_right(rule: Rule) -> None:
    check(rule, seed=11, once=True, instances=30)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", found()[::9], ids=lambda r: r.name)
def test_some_found_rules_are_right(rule: Rule) -> None:
    check(rule, seed=12, once=True)


def test_parts_of_joined_tensors_must_fit_one_another() -> None:
    """[a b] and [b a] have one shape where a and b have two, and so may [a b] and [a c]."""
    needed = [rule for rule in found() if "same shape" in str(rule)]
    assert len(needed) == 12
    for rule in needed:
        with pytest.raises(InputError, match=r"it (is wrong|fails) on"):
            check(replace(rule, when=()), once=True, instances=200)


def test_found_rules_do_not_follow_from_the_axioms() -> None:
    assert len(found()) > 100
    assert [rule.name for rule in found() if prove(rule) is not None] == []


def test_found_rules_are_none_of_the_written_ones() -> None:
    written = {str(r).partition(": ")[2] for r in SUBSTITUTIONS}
    assert written.isdisjoint(str(r).partition(": ")[2] for r in found())


def test_found_rules_apply_until_none_does() -> None:
    """Relu(x) - |x| + Max(y, Relu(-y)), which is cheaper in two places."""
    x, y = (Value(n, float32, (2, 3)) for n in "xy")
    f = Fragment("f", {})
    first = f.op("Sub", f.op("Max", x, y), y)
    second = f.op("Abs", f.op("Neg", f.op("Abs", f.op("Neg", y))))
    f.op("Add", first, second)
    out = f.operations[-1].writes[0]
    graph = Graph("g", (x, y), (out,), tuple(f.operations))
    after = rewrite(graph, found())
    assert len(after.operations) < len(graph.operations)
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((2, 3)).astype("f") for n in "xy"}
    (want,) = interp.evaluate(graph, given).values()
    (got,) = interp.evaluate(after, given).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_line_is_read_as_it_is_printed() -> None:
    for rule in found():
        text = str(rule).partition("  where")[0]
        assert str(parsed(text)) == text


@pytest.mark.parametrize(
    "line",
    [
        "no equation",
        "name: Relu(a) = a",
        "name: Relu(a) => a  # sometimes",
        "name: Relu(a[0]) => a",
        "name: a if b else c => a",
        "name: Relu(a) => b",
        "name: Reluu(a) => a",
    ],
)
def test_a_line_that_is_no_rule_is_refused(line: str) -> None:
    with pytest.raises(InputError):
        parsed(line)


# ------------------------------------------------------------------------------ the enumerator


def test_enumeration_finds_the_known_and_only_what_is_cheaper() -> None:
    equations = list(enumerator.candidates(2))
    texts = {(left.text, right.text) for left, right in equations}
    assert ("Abs(Neg(a))", "Abs(a)") in texts
    assert ("Max(Neg(a), a)", "Abs(a)") in texts
    assert all(right.cost < left.cost for left, right in equations)


def test_instances_of_an_equation_are_told() -> None:
    twice = applied("Relu", applied("Relu", A))
    inner = applied("Relu", applied("Relu", applied("Neg", B)))
    assert enumerator._instance(twice, inner, {}) is not None
    assert enumerator._instance(inner, twice, {}) is None
    same = applied("Max", A, A)
    assert enumerator._instance(same, applied("Max", A, B), {}) is None
    turned = applied("Max", applied("Neg", A), B)
    assert enumerator._instance(turned, applied("Max", A, applied("Neg", B)), {})


def test_what_holds_for_integers_alone_is_dropped() -> None:
    """The lesser of a square and its root is the root for integers, not for 1/2."""
    left = applied("Min", applied("Mul", A, A), A)
    assert enumerator.as_rule("r", left, A) is None


def test_labels_are_the_strongest_that_hold() -> None:
    told = enumerator.as_rule("r", applied("Abs", applied("Neg", A)), applied("Abs", A))
    assert told is not None
    assert told[1] == ["finite", "real"]  # a negative byte is another number
    below = applied("Max", applied("Min", A, B), A)
    told = enumerator.as_rule("r", below, A)
    assert told is not None
    assert told[1] == ["finite"]  # NaN goes through Min
