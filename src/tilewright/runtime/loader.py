"""Linking position-independent ELF objects into memory, so that running needs no LLVM.

All objects of one link share one mapping, so every call between them is in reach of a 32-bit
displacement. Symbols are resolved among these objects only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Mapping, Sequence

from tilewright.base import flags
from tilewright.base.errors import ArtifactError
from tilewright.base.text import reason
from tilewright.runtime import elf
from tilewright.runtime.linking import Linker
from tilewright.runtime.machine import architecture
from tilewright.runtime.relocations import RULES


class CodeImage:
    """Linked objects in executable memory. Keep it as long as an address of it is in use.

    symbols: name -> address of every global symbol. size: bytes mapped.
    """

    def __init__(
        self, memory: mmap.mmap, base: int, symbols: Mapping[str, int]
    ) -> None:
        self._memory: mmap.mmap | None = memory
        self.base = base
        self.size = len(memory)
        self.symbols = symbols

    def address(self, symbol: str) -> int:
        """The address of a global symbol. Raises ArtifactError if there is none, or it is gone."""
        if self._memory is None:
            raise ArtifactError(f"the image with symbol {symbol!r} was closed")
        try:
            return self.symbols[symbol]
        except KeyError:
            raise ArtifactError(
                f"no object defines the symbol {symbol!r}",
                code="TW-SYMBOL",
                hint="The artifact is incomplete: compile the model again",
            ) from None

    def close(self) -> None:
        """Unmap now; addresses of it must no longer be used. Without it, collection unmaps."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def link(
    objects: Sequence[bytes | memoryview], names: Sequence[str] | None = None
) -> CodeImage:
    """Map and link `objects` (x86-64 ELF); `names` is how errors call them.

    Raises ArtifactError for a damaged object, another machine's code, a symbol that none of them
    defines or two define, and a relocation that is not position independent.
    """
    if sys.platform != "linux":
        raise ArtifactError(
            f"native code cannot be loaded on {sys.platform}: only on Linux",
            code="TW-MACHINE",
        )
    titles = (
        names if names is not None else [f"object {n}" for n in range(len(objects))]
    )
    here = architecture()
    parsed = [elf.parse(data, title) for data, title in zip(objects, titles)]
    for item in parsed:
        if item.machine != here or here not in RULES:
            raise ArtifactError(
                f"{item.name} is code for {item.machine}; this loader runs {here} code",
                code="TW-MACHINE",
                hint="Compile the model for this machine",
            )
    linker = Linker(parsed)
    image = _mapped(linker)
    if flags.PERF_MAP.get():
        _write_perf_map(linker.functions())
    if flags.GDB.get():
        from tilewright.runtime import gdb

        for number, data in enumerate(objects):
            gdb.register(data, linker.addresses(number))
    return image


def _mapped(linker: Linker) -> CodeImage:
    """The image in its own memory, which is never writable and executable at once."""
    size = linker.size
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    linker.fill(memory, base)
    for start, end, protection in linker.spans:
        _protect(base + start, end - start, protection)
    return CodeImage(memory, base, linker.symbols)


def _protect(address: int, size: int, protection: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), protection):
        reason = os.strerror(ctypes.get_errno())
        raise ArtifactError(
            f"the system cannot provide memory for code: mprotect failed: {reason}",
            code="TW-MACHINE",
            hint="A hardened kernel or container policy may forbid generated code",
        )


def _write_perf_map(functions: Sequence[tuple[int, int, str]]) -> None:
    """Tell `perf` the functions' names (its /tmp/perf-<pid>.map convention)."""
    lines = [f"{address:x} {size:x} {name}\n" for address, size, name in functions]
    # Anyone may write to /tmp: never follow a link there.
    options = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    place = f"/tmp/perf-{os.getpid()}.map"
    try:
        with open(os.open(place, options, 0o600), "w") as file:
            file.writelines(lines)
    except OSError as error:
        raise ArtifactError(
            f"the map for perf cannot be written: {reason(error)}",
            where=place,
            hint=f"Unset {flags.PERF_MAP.name}",
        ) from None
