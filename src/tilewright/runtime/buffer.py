"""Aligned memory: arenas, outputs, and the addresses of arrays."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from ctypes import addressof, c_char
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilewright.base.errors import MemoryLimitError
from tilewright.base.text import human_bytes
from tilewright.runtime.abi import ALIGNMENT

_HUGE_PAGE: Final = 2 << 20
# The ctypes view of writable memory; NumPy 2's stubs do not say that arrays are buffers.
from_buffer: Final[Callable[[Any], c_char]] = c_char.from_buffer


def arena(nbytes: int) -> NDArray[np.uint8]:
    """`nbytes` bytes at an address that is a multiple of 64; large ones on huge pages.

    Pages that are never touched take no memory. Raises MemoryLimitError if the system refuses.
    """
    try:
        if nbytes < _HUGE_PAGE:
            return empty((nbytes,), np.dtype(np.uint8))
        memory = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (MemoryError, OSError, ValueError, OverflowError):
        raise MemoryLimitError(
            f"the system refuses {human_bytes(nbytes)} of memory for one running call"
        ) from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    shift = -addressof(from_buffer(memory)) % _HUGE_PAGE
    return np.frombuffer(memory, np.uint8, nbytes, shift)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An uninitialised array at an address that is a multiple of 64."""
    raw = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT - 1, np.uint8)
    return np.ndarray(shape, dtype, raw, -addressof(from_buffer(raw)) % ALIGNMENT)


def address(array: NDArray[Any]) -> int:
    """Where the array's first element lies."""
    try:
        return addressof(from_buffer(array))
    except (TypeError, ValueError):  # read-only, or without elements
        found: int = array.__array_interface__["data"][0]
        return found


def overlap(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether the memory ranges of two arrays touch."""
    return bool(np.may_share_memory(one, other))
