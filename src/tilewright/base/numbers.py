"""Checks of numbers that callers pass, and integer arithmetic."""

from __future__ import annotations

from operator import index
from typing import Any


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
