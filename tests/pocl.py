"""PoCL on processors that are newer than it.

The wheel's PoCL 3.0 holds LLVM 14, which calls a processor that it does not know "generic", a name
that its own compiler then refuses (issue 1049 of PoCL). Such devices get the newest name that it
knows, the one of the processor's family; what the processor can do, LLVM asks the processor itself.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any, Final

REFUSED: Final = b"generic\0"
KNOWN: Final = b"znver3\0"  # no longer than the name that it replaces
_STRUCT: Final = 4096  # bytes of PoCL's description of a device, at most


def renamed(listed: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """`platforms.listed`, after which PoCL's devices have a name that its compiler knows."""

    def known() -> list[Any]:
        devices = listed()
        for device in devices:
            if device.name.startswith("pthread-AMD"):
                rename(device.int_ptr)
        return devices

    return known


def rename(description: int) -> None:
    """Replace the name that is refused in PoCL's description at this address."""
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        words = os.pread(memory.fileno(), _STRUCT, description)
        for (address,) in struct.iter_unpack("Q", words[: len(words) // 8 * 8]):
            if _read(memory.fileno(), address) == REFUSED:
                os.pwrite(memory.fileno(), KNOWN, address)


def _read(memory: int, address: int) -> bytes:
    """What lies there; nothing if the word was no address."""
    try:
        return os.pread(memory, len(REFUSED), address)
    except (OSError, OverflowError):
        return b""
