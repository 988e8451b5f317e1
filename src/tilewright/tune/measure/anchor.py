"""The anchor: a loop with a constant number of cycles, so that its time shows the machine's state.

It is a chain of dependent multiplications without memory accesses. Only a lower clock or another
load on the same core slows it down; the latter may be invisible to this process and, in a virtual
machine, to its system.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from typing import Final

from tilewright.base.errors import ArtifactError
from tilewright.runtime import machine

STEPS: Final = 8192  # of three cycles each: about ten microseconds in all
# mov rcx, rdi / lea rax, [rdi + 1] / again: imul rax, rax / dec rcx / jnz again / ret
_CODE: Final = bytes.fromhex("4889f9 488d4701 480fafc0 48ffc9 75f7 c3")
_READ_EXECUTE: Final = 5


def anchor() -> Callable[[], float]:
    """A function that runs the loop and returns its seconds.

    Raises ArtifactError on processors other than x86-64, which cannot load the code either.
    """
    machine.require({"arch": "x86_64"})
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    memory[: len(_CODE)] = _CODE
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    size = ctypes.c_size_t(mmap.PAGESIZE)
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), size, _READ_EXECUTE):
        raise ArtifactError(
            "the system does not allow code in memory", code="TW-MACHINE"
        )
    run = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(start)
    clock = time.perf_counter

    def seconds(held: mmap.mmap = memory) -> float:
        begin = clock()
        run(STEPS)
        return clock() - begin

    return seconds


def best_of(run: Callable[[], float], count: int = 50) -> float:
    """The shortest time of several runs: that of a quiet machine, if it ever was quiet."""
    return min(run() for _ in range(count))
