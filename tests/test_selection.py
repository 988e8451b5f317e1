"""The fast tests run every n-th case of what is marked so, and fewer examples."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.selection import FEWER, draw_fewer, mark_sampled


class Item:
    """An item as pytest collects it."""

    def __init__(self, nodeid: str, every: int | None) -> None:
        self.nodeid = nodeid
        self.every = every
        self.added: list[str] = []

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return None if self.every is None else SimpleNamespace(args=(self.every,))

    def add_marker(self, name: str) -> None:
        self.added.append(name)


def test_every_third_case_of_a_sampled_test_is_fast() -> None:
    items = [Item(f"f.py::test_a[{n}]", 3) for n in range(7)]
    others = [Item("f.py::test_b[0]", 3), Item("f.py::test_c[0]", None)]
    mark_sampled([*items[:4], *others, *items[4:]])
    assert [i.added == [] for i in items] == [n % 3 == 0 for n in range(7)]
    assert all(i.added == [] for i in others)


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
