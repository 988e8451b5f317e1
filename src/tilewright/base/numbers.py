"""Checks of numbers that callers pass, and integer arithmetic."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from operator import index
from typing import Any

from tilewright.base.errors import InputError


def whole(value: Any, least: int | None = None) -> int | None:
    """`value` as an int if it is a whole number, `least` or more; else None.

    Integers of NumPy are whole numbers; truth values and floats (even 2.0) are none.
    """
    if isinstance(value, bool):
        return None
    try:
        number = index(value)
    except TypeError:
        return None
    return None if least is not None and number < least else number


def ceil_div(a: int, b: int) -> int:
    """The smallest integer that is not below a / b."""
    return -(-a // b)


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """The divisors of a positive whole number, least first. Raises InputError for another."""
    if whole(n, 1) is None:
        raise InputError(
            f"{n!r} has no divisors", where="divisors", hint="give a positive number"
        )
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    large = [n // d for d in reversed(small) if d * d != n]
    return *small, *large
