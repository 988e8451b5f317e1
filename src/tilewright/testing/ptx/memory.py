"""The memory that threads of PTX access: the caller's arrays, shared memory, and local memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tilewright.testing.ptx.arithmetic import Array

_FIRST: Final = 4096
_APART: Final = 256


class CallerMemory:
    """The caller's arrays, by address; gaps between them must not be accessed."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.addresses: list[int] = []
        end = _FIRST
        for array in arrays:
            self.addresses.append(end)
            blocks = -(-array.nbytes // _APART) + 1
            end += blocks * _APART
        self.bytes: Final = np.zeros(end, np.uint8)
        self.valid: Final = np.zeros(end, bool)
        for start, array in zip(self.addresses, arrays, strict=True):
            place = slice(start, start + array.nbytes)
            flat = array.reshape(-1)
            self.bytes[place] = flat.view(np.uint8)
            self.valid[place] = True

    def array(self, number: int, like: Array) -> Array:
        """The current contents of an array."""
        start = self.addresses[number]
        found = self.bytes[start : start + like.nbytes].copy()
        return found.view(like.dtype).reshape(like.shape)
