"""Constant masks that are bands along a diagonal, replaced by comparisons of positions.

For example, in a causal mask query i sees key j if j - i <= 0; a sliding window also has a lower
bound. Masks are booleans, or added numbers: 0 in the band and a single other number outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.expr.nodes import (
    Add,
    And,
    Buffer,
    Expr,
    Le,
    Load,
    Select,
    const,
)

Array = np.ndarray[Any, Any]
Read = Callable[[Load], Expr]
Band = tuple[int | None, int | None]


def as_band(buffer: Buffer, array: Array) -> Read | None:
    """A function that reads an element by comparing its last two indices; None if it is not a band.

    requires: all tables of the leading axes are equal, and every element fits the band; a single
    exception keeps the table.
    """
    if array.ndim < 2 or min(array.shape, default=0) < 1 or array.shape[-2] < 2:
        return None
    if buffer.dtype.is_bool:
        band = _band(array)
        return None if band is None else lambda load: _inside(band, load)
    return _of_numbers(buffer, array) if buffer.dtype.is_float else None


def _of_numbers(buffer: Buffer, array: Array) -> Read | None:
    first = array[(0,) * (array.ndim - 1)]  # one row is enough to rule out most tables
    last = array[(-1,) * (array.ndim - 1)]
    low = min(first.min(), last.min())
    if not low < 0 or not all(_is_mask(row, low) for row in (first, last)):
        return None
    band = _band(array == 0) if _is_mask(array, low) else None
    if band is None:
        return None
    zero = const(0.0, buffer.dtype)
    hidden = const(float(low), buffer.dtype)
    return lambda load: Select(
        _inside(band, load),
        zero,
        hidden,
    )


def _is_mask(array: Array, low: Any) -> bool:
    return bool(((array == 0) | (array == low)).all())


def _band(seen: Array) -> Band | None:
    """The least and greatest difference of the last two indices where `seen`, each None if the band
    has no end on that side. Not for a constant table."""
    rows, columns = seen.shape[-2:]
    table = seen.reshape(-1, rows, columns)
    if not (table == table[:1]).all():
        return None
    differences = np.arange(columns)[None] - np.arange(rows)[:, None]
    inside = differences[table[0]]
    if not inside.size or inside.size == differences.size:
        return None
    low = int(inside.min())
    high = int(inside.max())
    if not (table[0] == ((differences >= low) & (differences <= high))).all():
        return None
    return None if low == 1 - rows else low, None if high == columns - 1 else high


def _inside(band: Band, load: Load) -> Expr:
    *_, row, column = load.index
    low, high = band
    tests: list[Expr] = []
    if high is not None:
        tests.append(Le(column, Add(row, const(high))))
    if low is not None:
        tests.append(Le(Add(row, const(low)), column))
    return tests[0] if len(tests) == 1 else And(*tests)
