"""Which cases and how many examples of a test the fast tests run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from hypothesis import is_hypothesis_test, settings

FEWER = 5  # the fast tests draw one in five of a test's examples


def mark_representatives(items: Sequence[Any], whole: bool) -> None:
    """Make the cases that a test marked `representatives(*ids)` names fast, the others slow.

    items: those that pytest collected. whole: they are all cases of each test. Then an id that no
    case has raises LookupError.
    """
    tests: dict[str, list[tuple[str, Any]]] = {}
    for item in items:
        if item.get_closest_marker("representatives"):
            test, _, case = item.nodeid.partition("[")
            tests.setdefault(test, []).append((case[:-1], item))
    for test, cases in tests.items():
        named = cases[0][1].get_closest_marker("representatives").args
        unknown = set(named) - {case for case, _ in cases}
        if whole and unknown:
            raise LookupError(f"{test} has no cases {', '.join(sorted(unknown))}")
        for case, item in cases:
            if case not in named:
                item.add_marker("slow")


def mark_sampled(items: Sequence[Any]) -> None:
    """Make every n-th case of each test marked `sampled(n)` fast, the others slow.

    items: those that pytest collected. Choose n prime to the number of values of each parameter,
    so that all values occur.
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


def mark_covering(items: Sequence[Any]) -> None:
    """Make a covering array of strength k of each test marked `covering(k)` fast, the rest slow.

    Any k values of different `parametrize` marks that occur together in some case occur together
    in a fast one: for k = 1, each value of each mark occurs. Cases with a `slow` mark of their own
    are left out. items: those that pytest collected.
    """
    tests: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("covering") and not item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        (strength,) = cases[0].get_closest_marker("covering").args
        for item in _not_needed(cases, strength):
            item.add_marker("slow")


def _not_needed(cases: Sequence[Any], strength: int) -> list[Any]:
    """The cases outside of a covering array, which is built greedily: the best case first."""
    axes = len(_values(cases[0]))
    strength = min(strength, axes)
    brings = {case: set(combinations(_values(case), strength)) for case in cases}
    missing = set().union(*brings.values())
    while missing:
        best = max(brings, key=lambda case: len(brings[case] & missing))
        missing -= brings.pop(best)
    return list(brings)


def _values(case: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The value of a case for each `parametrize` mark; values are compared by identity."""
    return [
        (names, tuple(id(case.callspec.params[n]) for n in _words(names)))
        for names in (
            ",".join(_words(mark.args[0])) for mark in case.iter_markers("parametrize")
        )
    ]


def _words(names: str | Sequence[str]) -> list[str]:
    return names.replace(",", " ").split() if isinstance(names, str) else list(names)


def draw_fewer(items: Sequence[Any]) -> None:
    """Let Hypothesis draw one in `FEWER` of the examples of each test; items: as above."""
    functions = {getattr(item, "function", None): None for item in items}
    for test in functions:
        if is_hypothesis_test(test):
            own = test._hypothesis_internal_use_settings
            few = settings(own, max_examples=-(-own.max_examples // FEWER))
            test._hypothesis_internal_use_settings = few
