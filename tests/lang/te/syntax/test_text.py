"""Any Computation has a te text that reads back as an equal one, or a reason why it has none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.lang.mdh.syntax.test_catalog import CASES
from tilewright import te as t
from tilewright.base.errors import UnsupportedError
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import Computation
from tilewright.testing.computations import computations


def text(c: Computation) -> str:
    return canonical(
        [c], list(dict.fromkeys((*c.inputs, *(o.tensor for o in c.outputs))))
    )


@settings(max_examples=150, deadline=None)
@given(c=computations())
def test_random(c: Computation) -> None:
    try:
        shown = t.show(c)
    except UnsupportedError as error:
        assert "no tensor expression: " in str(error)
        return
    again = t.parse(shown)
    assert text(again) == text(c)
    assert t.show(again) == shown


# Operators of the MDH papers that te cannot say.
WITHOUT = ("MatMulT", "ExpandDims<0>", "ExpandDims<1>")


@pytest.mark.parametrize("name", CASES)
def test_the_operators_of_mdh(name: str) -> None:
    e, _ = CASES[name]
    if name in WITHOUT:
        with pytest.raises(
            UnsupportedError, match="is not written at its dimensions in order"
        ):
            t.show(e)
        return
    assert text(t.parse(t.show(e))) == text(e)
