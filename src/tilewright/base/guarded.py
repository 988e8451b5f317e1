"""Guarded memory: each tensor is between inaccessible pages, so that wrong accesses fault.

A tensor ends where such pages begin, or begins where they end; the rest of its own page holds a
pattern that is checked afterwards. A process that runs native code on it reports a fault with the
tensor's name, the distance, and whether it was a read or a write.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tilewright.base import flags
from tilewright.base.errors import MemoryLimitError

_PAGE: Final = mmap.PAGESIZE
_REACH: Final = 4 << 20  # bytes that are watched on both sides; they take no memory
_SLACK: Final = 0xE5
_NO_ACCESS, _READ = 0, 1
# Linux on x86-64: where siginfo_t has the address, and ucontext_t the processor's error code.
_ADDRESS_AT, _ERROR_AT, _WRITING = 16, 192, 2
# What an uninitialized tensor holds: a signaling NaN by the bytes of a float; others 0xAB.
_NANS: Final = {2: 0x7D01, 4: 0x7FA00001, 8: 0x7FF4000000000001}
_OTHER: Final = 0x4D  # of a second run, which must give the same

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Guarded:
    """One tensor's memory. `right`: it ends at the guard; else it begins there."""

    def __init__(self, name: str, nbytes: int, right: bool) -> None:
        self.name, self.nbytes = name, nbytes
        pages = max(1, -(-nbytes // _PAGE)) * _PAGE
        try:
            self._memory = mmap.mmap(
                -1, pages + 2 * _REACH, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, ValueError, OverflowError):
            raise _refused(f"{pages:,} bytes", name) from None
        self.low = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.high = self.low + pages + 2 * _REACH
        self._first, self._pages = self.low + _REACH, pages
        self.start = self._first + (pages - nbytes if right else 0)
        whole = np.frombuffer(self._memory, np.uint8)
        self._own = whole[_REACH : _REACH + pages]
        at = self.start - self._first
        self._slack = (self._own[:at], self._own[at + nbytes :])
        for part in self._slack:
            part[:] = _SLACK
        self.bytes: Bytes = self._own[at : at + nbytes]
        self._protect(self.low, _REACH, _NO_ACCESS)
        self._protect(self._first + pages, _REACH, _NO_ACCESS)

    def close_for_writing(self) -> None:
        """From now on a write is a fault."""
        self._protect(self._first, self._pages, _READ)

    def spilled(self) -> str | None:
        """What was written next to the tensor, within its page."""
        before, behind = (np.flatnonzero(part != _SLACK) for part in self._slack)
        if len(before):
            return f"{len(self._slack[0]) - int(before[-1])} bytes before {self.name}"
        return (
            f"{int(behind[0]) + 1} bytes past the end of {self.name}"
            if len(behind)
            else None
        )

    def place(self, address: int) -> str:
        """An address as seen from this tensor."""
        if address >= self.start + self.nbytes:
            return f"{address - self.start - self.nbytes + 1} bytes past the end of {self.name}"
        if address < self.start:
            return f"{self.start - address} bytes before {self.name}"
        return f"byte {address - self.start} of {self.name}"

    def distance(self, address: int) -> int:
        """Bytes between an address and the tensor."""
        return max(self.start - address, address - self.start - self.nbytes, 0)

    def _protect(self, address: int, size: int, protection: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), protection):
            reason = os.strerror(ctypes.get_errno())
            raise _refused(f"to protect {size:,} bytes ({reason})", self.name)


def poison(itemsize: int, floating: bool, nbytes: int, second: bool = False) -> Bytes:
    """What memory holds before anything is written there: `nbytes`, a multiple of `itemsize`."""
    if second:
        return np.full(nbytes, _OTHER, np.uint8)
    if not floating or itemsize not in _NANS:
        return np.full(nbytes, 0x7F if floating else 0xAB, np.uint8)
    pattern = np.array([_NANS[itemsize]], f"u{itemsize}").view(np.uint8)
    return np.tile(pattern, -(-nbytes // itemsize))[:nbytes]


def report_faults(
    places: Callable[[], Sequence[Guarded]], tell: Callable[[str], None]
) -> None:
    """From now on, report a fault of this process, by tensor, and exit. For forked processes."""
    libc = ctypes.CDLL(None)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def handler(number: int, info: int | None, context: int | None) -> None:
        try:
            tell(_told(number, info or 0, context or 0, places()))
        finally:
            os._exit(1)

    _KEPT.append(kind(handler))
    action = (
        ctypes.c_uint64 * 19
    )()  # struct sigaction: handler, mask of 128 bytes, flags
    action[0] = ctypes.cast(_KEPT[-1], ctypes.c_void_p).value or 0
    action[17] = 0x4 | 0x40000000  # SA_SIGINFO | SA_NODEFER
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
        libc.sigaction(int(number), ctypes.byref(action), None)


_KEPT: Final[list[Any]] = []  # what the system calls must stay


def _told(number: int, info: int, context: int, places: Sequence[Guarded]) -> str:
    if number not in (signal.SIGSEGV, signal.SIGBUS):
        return f"the code ends with {signal.Signals(number).name}"
    address = ctypes.c_uint64.from_address(info + _ADDRESS_AT).value
    verb = "write"
    if (
        context
        and not ctypes.c_uint64.from_address(context + _ERROR_AT).value & _WRITING
    ):
        verb = "read"
    near = min(places, key=lambda g: g.distance(address), default=None)
    if near is None or near.distance(address) > _REACH:
        what = "an address far from every tensor, or one that is not aligned as the code has it"
        return f"fault: {verb} at {what} ({address:#x})"
    return f"fault: {verb} at {near.place(address)}"


def _refused(what: str, name: str) -> MemoryLimitError:
    return MemoryLimitError(
        f"the system cannot provide {what} for {name}, to run a kernel in",
        hint=f"Unset {flags.CHECK.name}, raise the limits of the process on memory, or the "
        "system's vm.max_map_count",
    )
