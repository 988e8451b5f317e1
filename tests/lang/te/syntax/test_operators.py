"""Operators in te: compiled and interpreted they agree with NumPy, and their text reads back."""

from __future__ import annotations

import pytest

from tests.lang.te.syntax.operators import CASES
from tilewright import te as t
from tilewright.base.errors import UnsupportedError
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import Computation


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", "interp"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_numpy(name: str, target: str) -> None:
    case = CASES[name]()
    s = t.create_schedule([x.op for x in case.outputs])
    case.check(t.build(s, case.args, target=target))


@pytest.mark.parametrize("name", CASES)
def test_by_the_sketches(name: str) -> None:
    case = CASES[name]()
    case.check(t.build(t.create_schedule(list(case.outputs)), case.args, auto=True))


def _text(c: Computation) -> str:
    return canonical([c], [*c.inputs, *(o.tensor for o in c.outputs)])


@pytest.mark.parametrize(
    "name", [n for n in CASES if n not in ("recurrence", "two_states")]
)
def test_text_reads_back(name: str) -> None:
    s = t.create_schedule(list(CASES[name]().outputs))
    for stage in s.stages:
        c = t.computation(stage.op)
        assert _text(t.parse(t.show(c))) == _text(c)


def test_text(golden: object) -> None:
    shown = []
    for name in (
        "matmul",
        "conv2d",
        "argmax",
        "prefix_scan",
        "custom_reducer",
        "several_outputs",
    ):
        s = t.create_schedule(list(CASES[name]().outputs))
        shown += [t.show(t.computation(stage.op)) for stage in s.stages]
    golden("te_text", "\n\n".join(shown))  # type: ignore[operator]


def test_no_text_for_what_te_cannot_say() -> None:
    from tilewright.base.dtypes import float32
    from tilewright.operators import Buffer, map_

    x, y = Buffer("x", (4, 6), float32), Buffer("y", (6, 4), float32)
    turned = map_(
        "turn", y, lambda i, j: x[i, j], extents=(4, 6), index=lambda i, j: (j, i)
    )
    with pytest.raises(
        UnsupportedError, match="y is not written at its dimensions in order"
    ):
        t.show(turned)
    part = map_("part", y, lambda i, j: x[j, i], extents=(3, 4))
    with pytest.raises(UnsupportedError, match="y is written in part"):
        t.show(part)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os", "expected `name = ...`"),
        ("C = (1).__class__", "not allowed"),
        ("C = compute((4,), lambda i: zz[i])", "unknown name 'zz'"),
        ("C = placeholder((4,), float32)", "not a compute"),
        (
            "A = placeholder((4,), float32)\nC = compute((4,), lambda i: A[i, i])",
            "2 expressions",
        ),
        ("C = compute((9**9,), lambda i: 1)", "not allowed"),
    ],
    ids=["statement", "attribute", "name", "placeholder", "rank", "power"],
)
def test_text_that_is_none(text: str, message: str) -> None:
    from tilewright.base.errors import InputError

    with pytest.raises(InputError, match=message):
        t.parse(text)
