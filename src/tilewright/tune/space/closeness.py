"""Which of some values is nearest to one that is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, log2
from typing import Any


def plain(value: Any) -> Any:
    """A value as candidates have it; what came out of JSON has lists for tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return value


def place_of(values: Sequence[Any], wanted: Any) -> int | None:
    """Where a value is among others; None if it is not there."""
    value = plain(wanted)
    if isinstance(values, range):
        # Of anything but a whole number a range looks at each of its numbers.
        number = int(value) if _is_number(value) and value == value // 1 else None
        if number is None or number not in values:
            return None
        return values.index(number)
    try:
        return values.index(value)
    except ValueError:
        return None


def nearest(values: Sequence[Any], wanted: Any) -> int | None:
    """The place of the value nearest to one, the first of equally near ones; None if none is near.

    Near is a number by its ratio, a tuple by its parts; any other value only to itself.
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
    """The same without looking at each: next to a number are the one before and the one behind."""
    if not values or not _is_number(value):
        return None
    before: int = floor((value - values.start) / values.step)
    last = len(values) - 1
    first, second = (min(max(place, 0), last) for place in (before, before + 1))
    if distance(values[second], value) < distance(values[first], value):
        return second
    return first


def distance(a: Any, b: Any) -> float:
    """0 for equal values, infinite for those that have nothing to do with one another.

    Of positive numbers the logarithm of their ratio, of other numbers their difference, of tuples
    of one length the sum over their parts.
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
