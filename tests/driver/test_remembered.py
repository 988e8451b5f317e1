"""What a target says of kernels is asked once for each structure, and is what it says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tilewright.compute.nodes import Computation
from tilewright.driver.planning import questions
from tilewright.driver.remembered import RecordedAnswers
from tilewright.plan.lower import lower
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import merged
from tilewright.targets.registry import target
from tilewright.testing.networks.builder import Net

CPU = target("cpu", "x86-64-v3")


class Counting:
    """The target, which counts what it is asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(CPU, name)


def groups(depth: int = 64, width: int = 32) -> list[tuple[Computation, ...]]:
    """Two products of one structure, and one of another."""
    n = Net("three")
    x, y = n.input(16, depth), n.input(16, depth)
    z = n.input(16, depth + 16)
    rows = ((x, depth), (y, depth), (z, depth + 16))
    case = n.case([v @ n.weight(k, width, fan=k) for v, k in rows])
    steps = lower(case.graph).steps
    return [s.computations for s in steps if isinstance(s, FusionGroup)]


def test_answers_are_those_of_the_target():
    said, plain = RecordedAnswers(CPU), questions(CPU)
    for group in groups():
        weights = {group[0].inputs[1]}
        for fixed in (set(), weights):
            want = CPU.predicted_time(*merged(group, fixed))
            assert said.predicted_time(group, fixed) == want
            want = plain.estimated_cost(group, fixed)
            assert said.questions.estimated_cost(group, fixed) == want
        assert said.questions.is_profitable(group) == plain.is_profitable(group)
    assert said.predicted_given(100) == CPU.predicted_given(100)
    assert said.questions.costs == plain.costs


@pytest.mark.parametrize("question", ["predicted_time", "estimated_cost"])
def test_one_structure_is_asked_about_once_and_constants_are_a_part_of_it(question):
    host = Counting()
    said = RecordedAnswers(host)
    ask = getattr(said if question == "predicted_time" else said.questions, question)
    one, same, other = groups()
    for group in (one, same, one):
        ask(group, set())
    assert host.asked[question] == 1
    ask(other, set())
    assert host.asked[question] == 2
    for group in (one, same):
        ask(group, {group[0].inputs[1]})
    assert host.asked[question] == 3
    ask(one, {one[0].inputs[0]})
    assert host.asked[question] == 4


def test_questions_of_different_kinds_have_different_answers():
    host = Counting()
    said = RecordedAnswers(host)
    for group in groups()[:2]:
        assert said.questions.is_profitable(group) in (True, False)
        said.predicted_time(group, set())
    assert host.asked["is_profitable"] == host.asked["predicted_time"] == 1
