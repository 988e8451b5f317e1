"""PoCL on a processor that is newer than its compiler.

The wheel's PoCL 3.0 holds LLVM 14, which calls a processor of AMD that it does not know "generic",
a name that it then refuses itself (issue 1049 of PoCL). No option or environment variable of that
version sets another one, so the name is replaced where PoCL keeps it: by the newest one of the
family, whose instructions later processors have. What else the processor can do, LLVM asks it.
"""

from __future__ import annotations

import os
import platform
import struct
import warnings
from itertools import pairwise
from typing import Any, Final

from tilewright.base.errors import TilewrightWarning
from tilewright.targets.opencl.platforms import shown

# What a compiler says of the name that LLVM gives a processor newer than itself.
TOO_NEW: Final = "unknown target CPU"
REFUSED: Final = b"generic\0"
KNOWN: Final = b"znver3\0"  # no longer than the name that it replaces
_DEVICE: Final = "Portable Computing Language: pthread-AMD"
_TRIPLE: Final = (
    b"x86_64-"  # begins the name of the system, which is before the processor's
)
_STRUCT: Final = 2048  # bytes of PoCL's description of a device, at most


def renamed(device: Any) -> bool:
    """Whether the compiler of a device that refused the name of the processor has another one now.

    It is said once for a device, by a TilewrightWarning. Nothing is done to a device that is not
    PoCL's, on another system, or with a description of another form.
    """
    if not shown(device).startswith(_DEVICE) or platform.machine() != "x86_64":
        return False
    try:
        done = rename(device.int_ptr)
    except OSError:  # a system that does not let processes see their own memory
        return False
    if done:
        warnings.warn(
            f"{shown(device)} is newer than PoCL's compiler, which now takes it for a Zen 3; "
            "PoCL 5 knows it",
            TilewrightWarning,
            stacklevel=2,
        )
    return done


def rename(description: int) -> bool:
    """Replace the refused name in PoCL's description at this address; whether it is there.

    It is the text that the word behind that of the system's name points to. Raises OSError.
    """
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        file = memory.fileno()
        found = os.pread(file, _STRUCT, description)
        words = struct.unpack_from(f"{len(found) // 8}Q", found)
        for system, processor in pairwise(words):
            if _read(file, processor, REFUSED) and _read(file, system, _TRIPLE):
                return os.pwrite(file, KNOWN, processor) == len(KNOWN)
    return False


def _read(memory: int, address: int, text: bytes) -> bool:
    """Whether this text lies there; not if the word is no address."""
    try:
        return os.pread(memory, len(text), address) == text
    except (OSError, OverflowError):
        return False
