"""Linking position-independent ELF objects into memory, so that running needs no LLVM.

All objects of one link share one mapping, so every call between them is in reach of a 32-bit
displacement. Symbols are resolved among these objects only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from tilewright.base import flags
from tilewright.base.errors import ArtifactError
from tilewright.runtime import elf
from tilewright.runtime.elf import ElfObject, Relocation, Section, Symbol

_PAGE: Final = mmap.PAGESIZE
_MAX_IMAGE: Final = 1 << 31  # reach of a 32-bit displacement
_READ, _WRITE, _EXEC = 1, 2, 4

# Unwind tables serve debuggers that read files; nothing here ever unwinds.
_DROPPED_TYPES: Final = (elf.SHT_NOTE, elf.SHT_UNWIND)
_DROPPED_NAMES: Final = (".eh_frame",)

# Relocation type -> how the value is made and stored. S symbol, A addend, P place, G its GOT slot.
_RULES: Final[Mapping[int, tuple[str, str]]] = {
    1: ("S+A", "<Q"),  # R_X86_64_64
    2: ("S+A-P", "<i"),  # R_X86_64_PC32
    4: ("S+A-P", "<i"),  # R_X86_64_PLT32: nothing is lazy, so straight to the symbol
    9: ("G+A-P", "<i"),  # R_X86_64_GOTPCREL
    24: ("S+A-P", "<q"),  # R_X86_64_PC64
    41: ("G+A-P", "<i"),  # R_X86_64_GOTPCRELX
    42: ("G+A-P", "<i"),  # R_X86_64_REX_GOTPCRELX
}
_NAMES: Final[Mapping[int, str]] = {
    3: "R_X86_64_GOT32",
    10: "R_X86_64_32",
    11: "R_X86_64_32S",
    19: "R_X86_64_TLSGD",
    20: "R_X86_64_TLSLD",
    22: "R_X86_64_GOTTPOFF",
    23: "R_X86_64_TPOFF32",
    25: "R_X86_64_GOTOFF64",
    26: "R_X86_64_GOTPC32",
    27: "R_X86_64_GOT64",
}


class Image:
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
) -> Image:
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
    parsed = [elf.parse(data, title) for data, title in zip(objects, titles)]
    for item in parsed:
        if item.machine != "x86_64":
            raise ArtifactError(
                f"{item.name} is code for {item.machine}; this loader runs x86_64 code",
                code="TW-MACHINE",
                hint="Compile the model for this machine",
            )
    linker = _Linker(parsed)
    image = linker.run()
    if flags.PERF_MAP.get():
        _write_perf_map(linker.functions())
    if flags.GDB.get():
        from tilewright.runtime import gdb

        for number, data in enumerate(objects):
            gdb.register(data, linker.addresses(number))
    return image


class _Linker:
    """One link: where each section goes, what each symbol means, then the patches."""

    def __init__(self, objects: Sequence[ElfObject]) -> None:
        self.objects = objects
        self.place: dict[
            tuple[int, int], int
        ] = {}  # (object, section) -> offset in the image
        self.got: dict[
            tuple[int, int], int
        ] = {}  # (object, symbol) -> offset in the image
        self.globals: dict[str, tuple[int, Symbol]] = {}
        self.base = 0

    def run(self) -> Image:
        self._collect_globals()
        spans = self._lay_out()
        size = max(_PAGE, spans[-1][1])
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for (number, index), at in self.place.items():
            body = self.objects[number].sections[index].data
            memory[at : at + len(body)] = bytes(body)
        for (number, symbol), at in self.got.items():
            struct.pack_into("<Q", memory, at, self._value(number, symbol))
        for number, item in enumerate(self.objects):
            for relocation in item.relocations:
                if (number, relocation.section) in self.place:
                    self._patch(memory, number, relocation)
        for start, end, protection in spans:
            _protect(self.base + start, end - start, protection)
        symbols = {name: self._address(*found) for name, found in self.globals.items()}
        return Image(memory, self.base, symbols)

    def _collect_globals(self) -> None:
        for number, item in enumerate(self.objects):
            for symbol in item.symbols:
                if symbol.binding == elf.STB_LOCAL or symbol.section == elf.SHN_UNDEF:
                    continue
                before = self.globals.get(symbol.name)
                if before is None or before[1].binding == elf.STB_WEAK:
                    self.globals[symbol.name] = (number, symbol)
                elif symbol.binding != elf.STB_WEAK:
                    first = self.objects[before[0]].name
                    raise ArtifactError(
                        f"{first} and {item.name} both define the symbol {symbol.name!r}",
                        code="TW-SYMBOL",
                    )

    def _lay_out(self) -> list[tuple[int, int, int]]:
        """Place all sections; the spans (start, end, protection) of pages with equal rights."""
        spans = []
        at = 0
        for protection in (_READ | _EXEC, _READ, _READ | _WRITE):
            start = at
            for number, item in enumerate(self.objects):
                for index, section in enumerate(item.sections):
                    if _is_loaded(section) and _protection(section, item) == protection:
                        at = _round_up(at, section.align)
                        self.place[number, index] = at
                        at += section.size
            if protection == _READ:
                at = self._lay_out_got(_round_up(at, 8))
            at = _round_up(at, _PAGE)
            if at > _MAX_IMAGE:
                raise ArtifactError(
                    f"the code takes over {_MAX_IMAGE} bytes", code="TW-OBJECT"
                )
            if at > start:
                spans.append((start, at, protection))
        return spans or [(0, _PAGE, _READ)]

    def _lay_out_got(self, at: int) -> int:
        for number, item in enumerate(self.objects):
            for relocation in item.relocations:
                if not _RULES.get(relocation.type, ("", ""))[0].startswith("G"):
                    continue
                if (number, relocation.symbol) not in self.got:
                    self.got[number, relocation.symbol] = at
                    at += 8
        return at

    def _value(self, number: int, index: int) -> int:
        item = self.objects[number]
        symbol = item.symbols[index]
        if symbol.section != elf.SHN_UNDEF:
            if symbol.binding == elf.STB_LOCAL:
                return self._address(number, symbol)
            return self._address(*self.globals[symbol.name])
        if symbol.name not in self.globals:
            raise ArtifactError(
                f"{item.name} needs the symbol {symbol.name!r}, which no object defines",
                code="TW-SYMBOL",
                hint="The artifact is incomplete: compile the model again",
            )
        return self._address(*self.globals[symbol.name])

    def _address(self, number: int, symbol: Symbol) -> int:
        if symbol.section == elf.SHN_ABS:
            return symbol.value
        at = self.place.get((number, symbol.section))
        if at is None:
            raise ArtifactError(
                f"symbol {symbol.name!r} of {self.objects[number].name} lies in a section "
                "that is not loaded",
                code="TW-OBJECT",
            )
        return self.base + at + symbol.value

    def _patch(self, memory: mmap.mmap, number: int, relocation: Relocation) -> None:
        item = self.objects[number]
        section = item.sections[relocation.section]
        if relocation.type == 0:
            return
        rule = _RULES.get(relocation.type)
        if rule is None:
            kind = _NAMES.get(relocation.type, f"type {relocation.type}")
            raise ArtifactError(
                f"{item.name} has a relocation {kind} in {section.name}: not position independent",
                code="TW-OBJECT",
            )
        formula, layout = rule
        width = struct.calcsize(layout)
        if relocation.offset + width > len(section.data):
            raise ArtifactError(
                f"{item.name} has a relocation outside {section.name}", code="TW-OBJECT"
            )
        at = self.place[number, relocation.section] + relocation.offset
        if formula[0] == "G":
            value = self.base + self.got[number, relocation.symbol]
        else:
            value = self._value(number, relocation.symbol)
        value += relocation.addend
        if formula.endswith("-P"):
            value -= self.base + at
        else:
            value %= 1 << 64
        try:
            struct.pack_into(layout, memory, at, value)
        except struct.error:
            raise ArtifactError(
                f"{item.name} has a relocation in {section.name} that is out of reach",
                code="TW-OBJECT",
            ) from None

    def addresses(self, number: int) -> dict[int, int]:
        """Where the sections of one object are, by index."""
        return {i: self.base + at for (n, i), at in self.place.items() if n == number}

    def functions(self) -> list[tuple[int, int, str]]:
        """Address, size and name of every function."""
        return [
            (self._address(number, s), s.size, s.name)
            for number, item in enumerate(self.objects)
            for s in item.symbols
            if s.type == elf.STT_FUNC and (number, s.section) in self.place
        ]


def _is_loaded(section: Section) -> bool:
    if not section.flags & elf.SHF_ALLOC or section.type in _DROPPED_TYPES:
        return False
    return section.name not in _DROPPED_NAMES


def _protection(section: Section, item: ElfObject) -> int:
    if section.flags & elf.SHF_TLS or section.type not in (
        elf.SHT_PROGBITS,
        elf.SHT_NOBITS,
    ):
        raise ArtifactError(
            f"{item.name} has a section {section.name} of type {section.type}: not supported",
            code="TW-OBJECT",
        )
    write, execute = section.flags & elf.SHF_WRITE, section.flags & elf.SHF_EXECINSTR
    if write and execute:
        raise ArtifactError(
            f"{item.name} has a section {section.name} that is writable and executable",
            code="TW-OBJECT",
        )
    return _READ | (_EXEC if execute else 0) | (_WRITE if write else 0)


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
    # Anybody may write to /tmp: never follow a link that somebody put there.
    options = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(f"/tmp/perf-{os.getpid()}.map", options, 0o600), "w") as file:
            file.writelines(lines)
    except OSError as error:
        raise ArtifactError(
            f"the map for perf cannot be written: {error}",
            hint=f"Unset {flags.PERF_MAP.name}",
        ) from None


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
