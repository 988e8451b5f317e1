"""Finds equal arrays without comparing all of their bytes with those of all others."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

_SAMPLE: Final = 64  # elements that distinguish most arrays


class DistinctArrays:
    """Arrays of plain numbers; it keeps each distinct one."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[Array]] = {}  # by some of their elements

    def first(self, array: Array) -> Array:
        """The first array given that has this dtype, this shape and these bytes."""
        few = array.flat[:: max(1, array.size // _SAMPLE)].tobytes()
        known = self._known.setdefault((array.dtype, array.shape, few), [])
        for other in known:
            if other is array or np.array_equal(_bytes(other), _bytes(array)):
                return other
        known.append(array)
        return array


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
