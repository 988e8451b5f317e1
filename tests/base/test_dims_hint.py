"""Hints with values for dimensions, for Python and for the command line."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from tilewright.base.dims_hint import DimsHint, flag_value, some_of


def test_both_forms_name_the_same_values() -> None:
    made = DimsHint("give").of({"h": (8, 30, 2), "w": [1, 5], "n": 2, "k": ...})
    assert made == "give: dims={'h': (8, 30, 2), 'w': [1, 5], 'n': 2, 'k': ...}"
    assert made.flags == "give: --dim h=8..30..2 --dim w=1,5 --dim n=2 --dim k=..."
    again = pickle.loads(pickle.dumps(made))
    assert (again, again.flags) == (made, made.flags)
    assert DimsHint("give").flags == ""


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_some_values_are_few_and_allowed(count: int) -> None:
    allowed: dict[str, Any] = {f"d{n}": range(3, 40 + n, 2) for n in range(count)}
    found = some_of(allowed)
    assert [*found] == [*allowed]
    lists = {n: v if isinstance(v, list) else [v] for n, v in found.items()}
    assert 3 <= math.prod(map(len, lists.values())) + (count == 1) <= 16
    assert all({*v} <= {*allowed[n]} for n, v in lists.items())


def test_two_values_are_two() -> None:
    assert some_of({"n": (2, 9)}) == {"n": [2, 9]}
    assert flag_value([2, 9]) == "2,9"
