"""Passes and pipelines."""

from dataclasses import dataclass

import pytest

from tilewright.base.errors import InputError, VerifyError
from tilewright.base.events import record
from tilewright.ir.passes import Pass, Pipeline, parse_pipeline


@dataclass(frozen=True)
class AddNumber(Pass[int]):
    """Adds."""

    by: int = 1
    label: str = "a"

    def run(self, program: int) -> int:
        return program + self.by


@dataclass(frozen=True)
class NegatePass(Pass[int]):
    """Negates."""

    def run(self, program: int) -> int:
        return -program


@dataclass(frozen=True)
class Named(Pass[int]):
    """Has a name of its own."""

    name = "keep"

    def run(self, program: int) -> int:
        return program


KNOWN = {p.name: p for p in (AddNumber, NegatePass, Named)}


def positive(program: int) -> None:
    if program < 0:
        raise VerifyError(f"{program} is negative")


def test_names_come_from_the_class():
    assert (AddNumber.name, NegatePass.name, Named.name) == (
        "add-number",
        "negate",
        "keep",
    )


def test_runs_in_order():
    assert Pipeline("p", (AddNumber(2), NegatePass(), AddNumber())).run(3) == -4


def test_prints_as_one_line_that_rebuilds_it():
    pipeline = Pipeline("p", (AddNumber(2, label="b,c"), NegatePass(), AddNumber()))
    assert str(pipeline) == "add-number{by=2,label='b,c'},negate,add-number"
    assert parse_pipeline("p", str(pipeline), KNOWN) == pipeline


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add-nubmer", "unknown pass 'add-nubmer'. Did you mean 'add-number'?"),
        ("add-number{to=2}", "unexpected keyword argument 'to'"),
        ("add-number{2}", "each option is name=value"),
        ("add-number{by=}", "options 'by=' are wrong"),
        ("negate;keep", "cannot read a pipeline at 'negate;keep'"),
        ("negate,keep}", "cannot read a pipeline at"),
    ],
)
def test_text_that_is_wrong(text, message):
    with pytest.raises(InputError) as caught:
        parse_pipeline("p", text, KNOWN)
    assert message in str(caught.value)


def test_checks_between_steps_name_the_step():
    pipeline = Pipeline("p", (AddNumber(2), NegatePass(), AddNumber(9)), positive)
    assert pipeline.run(3) == 4
    with pytest.raises(
        VerifyError, match="pipeline p, after pass negate: -5 is negative"
    ):
        pipeline.run(3, check=True)
    with pytest.raises(VerifyError, match="before the first pass"):
        pipeline.run(-3, check=True)


def test_pipelines_nest_and_are_traced():
    inner = Pipeline("inner", (AddNumber(2),), positive)
    outer = Pipeline("outer", (inner, Named()), positive)
    with record() as events:
        assert outer.run(1, check=True) == 3
    seen = [
        (e.fields["pipeline"], e.fields["name"], e.fields["changed"]) for e in events
    ]
    assert seen == [
        ("inner", "add-number", True),
        ("outer", "inner", True),
        ("outer", "keep", False),
    ]
    assert all(e.elapsed is not None for e in events)
