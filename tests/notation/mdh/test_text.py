"""Any Computation that has a form reads back as an equal one."""

from __future__ import annotations

from hypothesis import given, settings

from tilewright.compute.nodes import Computation
from tilewright.lang.mdh import equal, parse, show
from tilewright.testing.computations import computations


@settings(max_examples=80, deadline=None)
@given(c=computations())
def test_text_both_ways(c: Computation) -> None:
    text = show(c)
    again = parse(text)
    assert equal(again, c)
    assert show(again) == text
