"""Any Computation that has a form reads back as an equal one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tilewright.base.errors import InputError
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


def test_only_a_computation_is_shown() -> None:
    with pytest.raises(InputError, match="expected a Computation, found a int"):
        show(3)  # type: ignore[arg-type]
