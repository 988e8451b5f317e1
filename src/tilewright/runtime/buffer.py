"""Aligned memory: arenas, outputs, and the addresses of arrays."""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from ctypes import (
    CDLL,
    addressof,
    c_char,
    c_int,
    c_long,
    c_size_t,
    c_void_p,
    get_errno,
)
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import MemoryLimitError
from tilewright.base.text import human_bytes
from tilewright.runtime.abi import ALIGNMENT

_HUGE_PAGE: Final = 2 << 20
_MAP_FIXED: Final = 0x10  # of Linux on x86-64, AArch64 and RISC-V
MAPPED: Final = 64 << 10  # bytes of a part of a file that are worth a mapping
_LARGE: Final = 1 << 20  # the allocator itself keeps smaller memory
# The ctypes view of writable memory; NumPy 2's stubs do not say that arrays are buffers.
from_buffer: Final[Callable[[Any], c_char]] = c_char.from_buffer


def arena(nbytes: int) -> NDArray[np.uint8]:
    """`nbytes` bytes at an address that is a multiple of 64; large ones on huge pages.

    Pages that are never touched take no memory. Raises MemoryLimitError if the system refuses.
    """
    try:
        if nbytes < _HUGE_PAGE:
            return empty((nbytes,), np.dtype(np.uint8))
        memory = mmap.mmap(
            -1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
    except (MemoryError, OSError, ValueError, OverflowError):
        raise _refused(nbytes) from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    shift = -addressof(from_buffer(memory)) % _HUGE_PAGE
    return np.frombuffer(memory, np.uint8, nbytes, shift)


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes `at` of memory that a file has too, from byte `place` of its data on."""

    at: int
    size: int
    place: int


def arena_of(
    nbytes: int,
    data: NDArray[np.uint8],
    parts: Sequence[FilePart],
    file: int,
    offset: int,
) -> NDArray[np.uint8]:
    """An arena with parts of an open file: `data` is mapped from its byte `offset` on.

    Large parts are mapped where they lie in whole pages of the arena as they do in the file, and
    must not be written; what else there is of them is copied. Raises as `arena`, and OSError.
    """
    made = arena(nbytes)
    page = mmap.PAGESIZE
    base = address(made)
    for part in parts:
        begin, end = base + part.at, base + part.at + part.size
        first, last = -(-begin // page) * page, end // page * page
        start = offset + part.place + first - begin
        fits = nbytes >= _HUGE_PAGE and part.size >= MAPPED and start % page == 0
        if not fits or not _map_over(first, last - first, file, start):
            first = last = end
        for a, b in ((begin, first), (last, end)):
            place = part.place + a - begin
            made[a - base : b - base] = data[place : place + b - a]
    return made


def _map_over(start: int, size: int, file: int, offset: int) -> bool:
    """Map a file read-only over whole pages of an arena; whether this system can."""
    if sys.platform != "linux":
        return False
    function = CDLL(None, use_errno=True).mmap
    function.restype = c_void_p
    function.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
    kind = mmap.MAP_SHARED | _MAP_FIXED
    if function(start, size, mmap.PROT_READ, kind, file, offset) != start:
        raise OSError(get_errno(), os.strerror(get_errno()))
    return True


def _refused(nbytes: int) -> MemoryLimitError:
    return MemoryLimitError(
        f"the system cannot provide {human_bytes(nbytes)} of memory for one call"
    )


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An uninitialized array at an address that is a multiple of 64."""
    raw = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT - 1, np.uint8)
    return np.ndarray(shape, dtype, raw, -addressof(from_buffer(raw)) % ALIGNMENT)


def fresh(nbytes: int) -> Callable[[], NDArray[np.uint8]]:
    """A function that returns an unshared array of so many bytes on each call."""
    if nbytes >= _LARGE:
        return RecycledMemory(nbytes)
    small: Any = partial(np.empty, nbytes, np.dtype(np.uint8))
    return small  # type: ignore[no-any-return]


class RecycledMemory:
    """Memory for arrays of one size, reused once an earlier array is no longer referenced.

    Fresh pages cost more to get than to fill, and large memory is fresh each time. Two blocks are
    kept, because a loop that rebinds one name holds the last array while the next is made.
    """

    __slots__ = ("_blocks", "_nbytes")

    MOST: Final = 2

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._blocks: list[NDArray[np.uint8]] = []

    def __call__(self) -> NDArray[np.uint8]:
        """An uninitialized array of bytes, not reused while it is referenced."""
        blocks = self._blocks
        for _ in range(len(blocks)):
            try:
                block, references = _taken(
                    blocks
                )  # from here on, no other thread sees it
            except IndexError:
                break
            blocks.append(block)
            if references <= _UNUSED:
                return block
        try:
            block = np.empty(self._nbytes, np.uint8)
        except MemoryError:
            raise _refused(self._nbytes) from None
        if len(blocks) < self.MOST:
            blocks.append(block)
        return block


def _taken(blocks: list[NDArray[np.uint8]]) -> tuple[NDArray[np.uint8], int]:
    """The first of the blocks, no longer among them, and how many references it has here."""
    block = blocks.pop(0)
    return block, sys.getrefcount(block)


# What an array has that only the list held; another Python may count otherwise.
_UNUSED: Final = _taken([np.empty(1, np.uint8)])[1]


def address(array: NDArray[Any]) -> int:
    """Where the array's first element is."""
    try:
        return addressof(from_buffer(array))
    except (TypeError, ValueError):  # read-only, or without elements
        found: int = array.__array_interface__["data"][0]
        return found


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


def overlap(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether the memory ranges of two arrays touch."""
    return bool(np.may_share_memory(one, other))
