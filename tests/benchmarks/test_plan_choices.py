"""Other decisions about a plan: each changes one pass, and none is left behind."""

import pytest
from click.testing import CliRunner

from benchmarks import plan_choices
from benchmarks.plan_choices import CHOICES, decided
from tilewright.driver import planning
from tilewright.driver.planning import questions
from tilewright.targets.registry import target

ASKED = questions(target("cpu", "x86-64-v3", threads=1))


def passes():
    return planning.plan_pipeline(ASKED, "default", {}).passes


@pytest.mark.parametrize("label", CHOICES)
def test_a_decision_changes_one_pass(label):
    usual = passes()
    with decided(CHOICES[label]):
        other = passes()
    assert passes() == usual
    kinds = [type(p) for p in usual]
    changed = [p for p in usual if p not in other]
    assert len(changed) == 1
    assert len(other) in (len(usual), len(usual) - 1)
    assert [type(p) for p in other] == [
        k for k in kinds if k is not type(changed[0]) or len(other) == len(usual)
    ]


def test_a_decision_ends_with_an_error_too():
    usual = planning.plan_pipeline
    with pytest.raises(ZeroDivisionError), decided(None):
        assert planning.plan_pipeline is not usual
        _ = 1 / 0
    assert planning.plan_pipeline is usual


def test_the_command_has_a_row_for_each_decision(monkeypatch):
    monkeypatch.setattr(plan_choices, "rows", lambda name: [f"{name}, a", f"{name}, b"])
    done = CliRunner().invoke(plan_choices.main, ["--networks", "lenet,resnet18"])
    assert done.exit_code == 0, done.output
    assert done.output.split("\n")[:3] == ["lenet, a", "lenet, b", "resnet18, a"]
