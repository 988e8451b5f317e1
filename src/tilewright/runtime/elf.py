"""Reading ELF64 relocatable objects: sections, symbols and relocations, with all offsets checked.

Format: System V gABI chapter 4 (object files) and the x86-64 psABI (relocation types).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArtifactError

ET_REL: Final = 1
MACHINES: Final = {62: "x86_64", 183: "aarch64", 243: "riscv64", 3: "i386", 40: "arm"}

SHT_PROGBITS: Final = 1
SHT_SYMTAB: Final = 2
SHT_STRTAB: Final = 3
SHT_RELA: Final = 4
SHT_NOTE: Final = 7
SHT_NOBITS: Final = 8
SHT_REL: Final = 9
SHT_UNWIND: Final = 0x70000001

SHF_WRITE: Final = 1
SHF_ALLOC: Final = 2
SHF_EXECINSTR: Final = 4
SHF_TLS: Final = 0x400

SHN_UNDEF: Final = 0
SHN_ABS: Final = 0xFFF1
SHN_COMMON: Final = 0xFFF2
SHN_LORESERVE: Final = 0xFF00

STB_LOCAL: Final = 0
STB_GLOBAL: Final = 1
STB_WEAK: Final = 2

STT_FUNC: Final = 2
STT_SECTION: Final = 3
STT_TLS: Final = 6
STT_IFUNC: Final = 10

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELA: Final = struct.Struct("<QQq")

_MAX_ALIGN: Final = 4096
_MAX_SIZE: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Section:
    """One section header. `data` is empty for NOBITS; `size` is then its size in memory."""

    name: str
    type: int
    flags: int
    size: int
    align: int
    link: int
    info: int
    entry_size: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol; `section` is an index into the object's sections, SHN_ABS or SHN_UNDEF."""

    name: str
    binding: int
    type: int
    section: int
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """Patch `offset` in section `section` with symbol number `symbol` plus `addend`."""

    section: int
    offset: int
    type: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class ElfObject:
    """A parsed object; `name` is how errors call it."""

    name: str
    machine: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


def parse(data: bytes | memoryview, name: str = "object") -> ElfObject:
    """The object in `data`. Raises ArtifactError, naming what is wrong, for anything else."""
    view = memoryview(data).cast("B")
    if len(view) < _HEADER.size or bytes(view[:4]) != b"\x7fELF":
        raise _bad(name, "is not an ELF file")
    fields = _HEADER.unpack_from(view)
    ident, kind, machine, offset, count, names = (
        fields[i] for i in (0, 1, 2, 6, 12, 13)
    )
    if ident[4:7] != b"\x02\x01\x01":
        raise _bad(name, "is no 64-bit little-endian ELF file of version 1")
    if kind != ET_REL:
        raise _bad(name, f"is ELF type {kind}, expected a relocatable object (type 1)")
    if fields[11] != _SECTION.size:
        raise _bad(
            name, f"has section headers of {fields[11]} bytes, expected {_SECTION.size}"
        )
    if offset + count * _SECTION.size > len(view) or not 0 < count < SHN_LORESERVE:
        raise _bad(
            name, f"is truncated: {count} section headers at {offset} do not fit"
        )
    sections = _sections(view, offset, count, names, name)
    tables = [n for n, s in enumerate(sections) if s.type == SHT_SYMTAB]
    if len(tables) > 1:
        raise _bad(name, "has more than one symbol table")
    symbols = tuple(_symbols(sections, tables[0], name)) if tables else ()
    relocations = tuple(_relocations(sections, tables, len(symbols), name))
    machine_name = MACHINES.get(machine, f"ELF machine {machine}")
    return ElfObject(name, machine_name, sections, symbols, relocations)


def _sections(
    view: memoryview, offset: int, count: int, names: int, name: str
) -> tuple[Section, ...]:
    headers = list(_SECTION.iter_unpack(view[offset : offset + count * _SECTION.size]))
    if names >= count or headers[names][1] != SHT_STRTAB:
        raise _bad(name, f"has no section name table at index {names}")
    bodies = [_body(view, header, n, name) for n, header in enumerate(headers)]
    made = []
    for header, body in zip(headers, bodies):
        at, kind, flags, _, _, size, link, info, align, entry_size = header
        title = _text(bodies[names], at, name)
        if align & (align - 1) or (flags & SHF_ALLOC and align > _MAX_ALIGN):
            raise _bad(
                name, f"section {title} has alignment {align}, expected a power of two"
            )
        made.append(
            Section(
                title, kind, flags, size, max(1, align), link, info, entry_size, body
            )
        )
    return tuple(made)


def _body(
    view: memoryview, header: tuple[int, ...], number: int, name: str
) -> memoryview:
    kind, at, size = header[1], header[4], header[5]
    if kind == 0 or kind == SHT_NOBITS:
        if size > _MAX_SIZE:
            raise _bad(name, f"section {number} wants {size} bytes, limit {_MAX_SIZE}")
        return view[:0]
    if at + size > len(view):
        raise _bad(
            name, f"is truncated: section {number} ends at {at + size} of {len(view)}"
        )
    return view[at : at + size]


def _symbols(sections: tuple[Section, ...], table: int, name: str) -> Iterator[Symbol]:
    section = sections[table]
    if section.link >= len(sections) or sections[section.link].type != SHT_STRTAB:
        raise _bad(name, "the symbol table names no string table")
    if section.size % _SYMBOL.size:
        raise _bad(
            name,
            f"the symbol table has {section.size} bytes, which is not a multiple of 24",
        )
    strings = sections[section.link].data
    for at, info, _, index, value, size in _SYMBOL.iter_unpack(section.data):
        title = _text(strings, at, name)
        binding, kind = info >> 4, info & 15
        if kind in (STT_TLS, STT_IFUNC) or index == SHN_COMMON:
            raise _bad(
                name,
                f"symbol {title} is thread-local, indirect or common: not supported",
            )
        if binding not in (STB_LOCAL, STB_GLOBAL, STB_WEAK):
            raise _bad(name, f"symbol {title} has the unknown binding {binding}")
        if index not in (SHN_UNDEF, SHN_ABS):
            if index >= len(sections):
                raise _bad(
                    name, f"symbol {title} is in section {index} of {len(sections)}"
                )
            if value > sections[index].size:
                raise _bad(
                    name, f"symbol {title} is outside section {sections[index].name}"
                )
        yield Symbol(title, binding, kind, index, value, size)


def _relocations(
    sections: tuple[Section, ...], tables: list[int], symbols: int, name: str
) -> Iterator[Relocation]:
    for section in sections:
        if section.type == SHT_REL:
            raise _bad(name, f"section {section.name} has relocations without addends")
        if section.type != SHT_RELA:
            continue
        if section.info >= len(sections) or section.link not in tables:
            raise _bad(
                name, f"section {section.name} points to no section or symbol table"
            )
        if section.size % _RELA.size:
            raise _bad(
                name,
                f"section {section.name} has {section.size} bytes, which is not a multiple of 24",
            )
        for offset, info, addend in _RELA.iter_unpack(section.data):
            if info >> 32 >= symbols:
                raise _bad(
                    name, f"a relocation in {section.name} names symbol {info >> 32}"
                )
            yield Relocation(
                section.info, offset, info & 0xFFFFFFFF, info >> 32, addend
            )


def _text(strings: memoryview, at: int, name: str) -> str:
    if at >= len(strings):
        if at == 0:
            return ""
        raise _bad(name, f"names a string at {at} of {len(strings)}")
    raw = bytes(strings[at : at + 4096])
    end = raw.find(b"\0")
    if end < 0:
        raise _bad(name, "has a string without an end")
    return raw[:end].decode("utf-8", "backslashreplace")


def _bad(name: str, problem: str) -> ArtifactError:
    return ArtifactError(
        f"{name} {problem}",
        code="TW-OBJECT",
        hint="The file is damaged: compile the model again",
    )
