"""LLVM's object files: finds undefined symbols, and adds constants that LLVM never sees.

Formats: System V gABI chapter 4 (ELF, 32 and 64 bits); WebAssembly 1.0, section 5, and the tool
conventions' "Linking" (undefined functions are imports of the module "env").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from tilewright.base.errors import CompileError
from tilewright.base.leb128 import Reader

_ELF: Final = b"\x7fELF"
_WASM: Final = b"\0asm"
_IMPORTS: Final = 2  # the number of the section
_SYMTAB: Final = 2
_WRITE: Final = 1

# By the class of the file: header, section header, symbol.
_HEADERS: Final = {1: "<16sHHIIIIIHHHHHH", 2: "<16sHHIQQQIHHHHHH"}
_SECTIONS: Final = {1: "<IIIIIIIIII", 2: "<IIQQQQIIQQ"}
_SYMBOLS: Final = {1: ("<IIIBBH", 0, 5), 2: ("<IBBHQQ", 0, 3)}


def format_of(triple: str) -> str:
    """The object format of a triple's system: elf, macho, coff or wasm."""
    if triple.startswith("wasm"):
        return "wasm"
    for name, found in (("windows", "coff"), ("macos", "macho"), ("darwin", "macho")):
        if name in triple:
            return found
    return "elf"


def is_elf(code: bytes) -> bool:
    """Whether an object file is ELF."""
    return code.startswith(_ELF)


def undefined(code: bytes) -> list[str]:
    """Names that an object refers to without defining them; none are found in Mach-O and COFF."""
    if is_elf(code):
        return list(_undefined_in_elf(code))
    if code.startswith(_WASM):
        return [name for kind, name in imports(code) if kind == 0]
    return []


def imports(code: bytes) -> Iterator[tuple[int, str]]:
    """Kind (0: function, 1: table, 2: memory, 3: global) and name of each import of a module."""
    for number, body in wasm_sections(code):
        if number != _IMPORTS:
            continue
        reader = Reader(body)
        for _ in range(reader.unsigned()):
            reader.name()
            name, kind = reader.name(), reader.byte()
            yield kind, name
            _skip_type(reader, kind)


def _skip_type(reader: Reader, kind: int) -> None:
    if kind == 0:
        reader.unsigned()
        return
    if kind in (1, 3):
        reader.byte()
    if kind == 3:
        reader.byte()
        return
    flags = reader.unsigned()
    reader.unsigned()
    if flags & 1:
        reader.unsigned()


def wasm_sections(code: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and contents of each section of a WebAssembly module."""
    reader = Reader(code, 8)
    while not reader.ended:
        number = reader.byte()
        yield number, reader.bytes(reader.unsigned())


def with_data(code: bytes, section: str, data: memoryview) -> bytes:
    """An ELF object with one section replaced by read-only data.

    The data is appended to the file, so everything else keeps its offset. Raises CompileError if
    there is no such section.
    """
    kind = code[4]
    at, count, names = _table(code)
    layout = struct.Struct(_SECTIONS[kind])
    for n in range(count):
        fields = list(layout.unpack_from(code, at + n * layout.size))
        if _string(code, names + fields[0]) != section:
            continue
        made = bytearray(code)
        made += bytes(-len(made) % max(1, fields[8]))
        fields[2] &= ~_WRITE
        fields[4], fields[5] = len(made), len(data)
        layout.pack_into(made, at + n * layout.size, *fields)
        return bytes(made) + bytes(data)
    raise CompileError(f"the object has no section {section}", code="TW-OBJECT")


def _undefined_in_elf(code: bytes) -> Iterator[str]:
    kind = code[4]
    at, count, _ = _table(code)
    layout = struct.Struct(_SECTIONS[kind])
    headers = [layout.unpack_from(code, at + n * layout.size) for n in range(count)]
    form, name, index = _SYMBOLS[kind]
    for header in headers:
        if header[1] != _SYMTAB:
            continue
        strings = headers[header[6]][4]
        for fields in struct.iter_unpack(form, code[header[4] : header[4] + header[5]]):
            if fields[index] == 0 and fields[name]:
                yield _string(code, strings + fields[name])


def _table(code: bytes) -> tuple[int, int, int]:
    """The offset and number of section headers, and the offset of their names."""
    fields = struct.unpack_from(_HEADERS[code[4]], code)
    layout = struct.Struct(_SECTIONS[code[4]])
    at, count, names = fields[6], fields[12], fields[13]
    return at, count, layout.unpack_from(code, at + names * layout.size)[4]


def _string(code: bytes, at: int) -> str:
    return code[at : code.index(0, at)].decode()
