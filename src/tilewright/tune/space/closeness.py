"""The nearest of some values to a wanted one."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, log2
from typing import Any


def plain(value: Any) -> Any:
    """A value in the form of candidates: JSON has lists for tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return value


def place_of(values: Sequence[Any], wanted: Any) -> int | None:
    """The index of a value; None if it is absent."""
    value = plain(wanted)
    if isinstance(values, range):
        # For anything but an int, `range` would compare every element.
        number = int(value) if _is_number(value) and value == value // 1 else None
        if number is None or number not in values:
            return None
        return values.index(number)
    try:
        return values.index(value)
    except ValueError:
        return None


def nearest(values: Sequence[Any], wanted: Any) -> int | None:
    """The index of the nearest value, the first among equals; None if none is near.

    Numbers are compared by ratio, tuples by element; any other value is near only to itself.
    """
    value = plain(wanted)
    exact = place_of(values, value)
    if exact is not None:
        return exact
    if isinstance(values, range):
        return _nearest_number(values, value)
    apart = [distance(v, value) for v in values]
    least = min(apart, default=inf)
    return apart.index(least) if least < inf else None


def _nearest_number(values: range, value: Any) -> int | None:
    """The same without a scan: only the elements just before and after a number can be nearest."""
    if not values or not _is_number(value):
        return None
    before: int = floor((value - values.start) / values.step)
    last = len(values) - 1
    first, second = (min(max(place, 0), last) for place in (before, before + 1))
    if distance(values[second], value) < distance(values[first], value):
        return second
    return first


def distance(a: Any, b: Any) -> float:
    """0 for equal values, infinite for incomparable ones.

    For positive numbers the absolute logarithm of their ratio, for other numbers their difference,
    for tuples of equal length the sum over their elements.
    """
    if a == b and isinstance(a, bool) == isinstance(b, bool):
        return 0.0
    if _is_number(a) and _is_number(b):
        return abs(log2(a / b)) if a > 0 and b > 0 else abs(a - b)
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return sum(map(distance, a, b))
    return inf


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
