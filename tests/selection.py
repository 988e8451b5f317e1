"""What of a test the fast tests run: some of its cases, some of its examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import is_hypothesis_test, settings

FEWER = 3  # of the examples of a test, the fast tests draw one in so many


def mark_sampled(items: Sequence[Any]) -> None:
    """Of a test that is marked `sampled(n)`, every n-th case is a fast test; the others are slow.

    items: those that pytest collected. Choose n prime to the number of values of each parameter,
    so that all of them take turns.
    """
    met: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None:
            continue
        test = item.nodeid.partition("[")[0]
        if met[test] % mark.args[0]:
            item.add_marker("slow")
        met[test] += 1


def draw_fewer(items: Sequence[Any]) -> None:
    """Let Hypothesis draw one in `FEWER` of the examples of each test; items: as above."""
    functions = {getattr(item, "function", None): None for item in items}
    for test in functions:
        if is_hypothesis_test(test):
            own = test._hypothesis_internal_use_settings
            few = settings(own, max_examples=-(-own.max_examples // FEWER))
            test._hypothesis_internal_use_settings = few
