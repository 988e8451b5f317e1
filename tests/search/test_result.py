"""Gaps: how good a result is, as solvers state it."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilewright.search import Result, StopReason, relative_gap


@pytest.mark.parametrize(
    ("cost", "bound", "gap"),
    [
        (120, 100, 0.2),
        (100, 100, 0),
        (-100, -120, 0.2),
        (inf, inf, 0),
        (inf, 5, inf),
        (5, -inf, inf),
        (5, 0, inf),
        (0, -5, inf),
        (1, -1, inf),
        (nan, 1, inf),
        (0, 0, 0),
    ],
)
def test_a_gap_is_a_part_of_what_is_nearer_to_zero(
    cost: float, bound: float, gap: float
) -> None:
    assert relative_gap(cost, bound) == pytest.approx(gap)


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6))
def test_a_gap_says_how_much_better_anything_can_be(cost: float, bound: float) -> None:
    assume(bound <= cost)
    assert cost == pytest.approx(bound * (1 + relative_gap(cost, bound)))
    assert relative_gap(-bound, -cost) == pytest.approx(relative_gap(cost, bound))


def test_of_a_tuple_the_first_number_is_bounded() -> None:
    found = Result("state", (6, 2, 9), 5.0, StopReason.FINISHED, 3, 0.1)
    assert found.gap == pytest.approx(0.2) and not found.exact
    assert Result("state", (6, 2, 9), 6.0, StopReason.FINISHED, 3, 0.1).exact
