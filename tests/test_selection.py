"""The fast tests run every n-th case of what is marked so, and fewer examples."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.selection import (
    FEWER,
    draw_fewer,
    mark_covering,
    mark_representatives,
    mark_sampled,
)


class Item:
    """An item as pytest collects it."""

    def __init__(self, nodeid: str, *args: object) -> None:
        self.nodeid = nodeid
        self.args = args
        self.added: list[str] = []

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(args=self.args) if self.args else None

    def add_marker(self, name: str) -> None:
        self.added.append(name)


def test_every_third_case_of_a_sampled_test_is_fast() -> None:
    items = [Item(f"f.py::test_a[{n}]", 3) for n in range(7)]
    others = [Item("f.py::test_b[0]", 3), Item("f.py::test_c[0]")]
    mark_sampled([*items[:4], *others, *items[4:]])
    assert [i.added == [] for i in items] == [n % 3 == 0 for n in range(7)]
    assert all(i.added == [] for i in others)


def test_the_named_cases_are_fast() -> None:
    items = [Item(f"f.py::test_a[{n}]", "1", "a[2]") for n in ("0", "1", "a[2]", "3")]
    mark_representatives([*items, Item("f.py::test_b[0]")], whole=True)
    assert [i.added for i in items] == [["slow"], [], [], ["slow"]]
    with pytest.raises(LookupError, match=r"f.py::test_a has no cases a\[2\]"):
        mark_representatives(items[:2], whole=True)
    mark_representatives(items[:2], whole=False)


class Case:
    """An item of a test with the marks `parametrize` of `params`, by the names they give."""

    def __init__(self, strength: int, slow: bool = False, **params: object) -> None:
        self.nodeid = f"f.py::test_a[{params}]"
        self.callspec = SimpleNamespace(params=params)
        self.marks = {"covering": SimpleNamespace(args=(strength,))}
        if slow:
            self.add_marker("slow")

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return self.marks.get(name)

    def iter_markers(self, name: str) -> list[SimpleNamespace]:
        names = [("a",), ("b, c",), (["d"],)]
        return [SimpleNamespace(args=n) for n in names]

    def add_marker(self, name: str) -> None:
        self.marks[name] = SimpleNamespace(args=())


@pytest.mark.parametrize(("strength", "count"), [(1, 4), (2, 12), (3, 24), (4, 24)])
def test_values_meet_in_a_fast_case(strength: int, count: int) -> None:
    """b and c are given together: each pair of theirs is one value, also where b is known."""
    together = [("x", 0), ("x", 1), ("y", 0), ("y", 2)]
    cases = [
        Case(strength, a=a, b=b, c=c, d=d)
        for a in (True, False)
        for b, c in together
        for d in (None, 1, 2)
    ]
    slow = Case(strength, slow=True, a=None, b="x", c=0, d=1)
    mark_covering([*cases, slow])
    fast = [c.callspec.params for c in cases if "slow" not in c.marks]
    assert len(fast) == count
    axes = [("a",), ("b", "c"), ("d",)]
    for some in combinations(axes, min(strength, 3)):
        names = [n for axis in some for n in axis]
        every = {tuple(c.callspec.params[n] for n in names) for c in cases}
        assert {tuple(f[n] for n in names) for f in fast} == every


def test_a_test_of_several_cases_draws_fewer_examples_once() -> None:
    drawn: list[int] = []

    @settings(max_examples=3 * FEWER, database=None)
    @given(st.integers(0, 1 << 40))
    def property_of(n: int) -> None:
        drawn.append(n)

    items = [SimpleNamespace(function=property_of)] * 2
    draw_fewer([*items, SimpleNamespace(function=Item), SimpleNamespace()])
    property_of()
    assert len(drawn) == 3
