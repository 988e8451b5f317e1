"""64-bit ELF shared libraries from relocatable objects, without a system linker.

The code is position-independent and all its addresses are relative, so the loader has nothing to
relocate. The library depends on no other. Format: System V gABI, chapters 4 and 5.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError
from tilewright.runtime import elf
from tilewright.runtime.linking import EXEC, READ, WRITE, Linker, Span

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_MACHINES: Final = {name: number for number, name in elf.MACHINES.items()}
_SHARED: Final = 3  # the type of the file
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_FLAGS_AT: Final = 48  # offset of processor-specific flags in the object's header

_MOST_SEGMENTS: Final = 8
_COUNT_AT: Final = 56  # offset of the number of segments in the header
_HEADER_COUNT: Final = struct.Struct("<H")

# The largest page size, in bytes, that systems of an architecture use.
_PAGES: Final = {"x86_64": 1 << 12, "aarch64": 1 << 16, "riscv64": 1 << 12}

_SECTIONS: Final = {
    READ | EXEC: (".text", elf.SHF_ALLOC | elf.SHF_EXECINSTR),
    READ: (".rodata", elf.SHF_ALLOC),
    READ | WRITE: (".data", elf.SHF_ALLOC | elf.SHF_WRITE),
}


# Indices of the sections of the dynamic tables; section 0 is empty.
_HASH, _SYMTAB, _STRTAB, _FIRST = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class _Row:
    """A section of the file. If it is loaded, its address equals its file offset."""

    name: str
    type: int
    flags: int
    at: int
    size: int
    link: int = 0
    info: int = 0
    entry: int = 0


def shared_library(
    codes: Sequence[bytes],
    name: str,
    functions: Sequence[str],
    entry: str | None = None,
) -> bytes:
    """Link objects of one architecture into the shared library `name`, which exports `functions`.

    entry: the function to start with if the library is run as a program. Raises CompileError for an
    unknown architecture or code with absolute addresses, and ArtifactError like `Linker`.
    """
    items = [elf.parse(code, name) for code in codes]
    machine = items[0].machine
    page = _PAGES.get(machine)
    if page is None:
        raise CompileError(
            f"no shared library can be linked for {machine}",
            code="TW-LIBRARY",
            where=name,
            hint="write an object (.o) or a static library (.a)",
        )
    tables = _Tables(name, functions)
    body = _up(tables.end, page)
    linker = Linker(items, body, page)
    if linker.needs_addresses():
        raise CompileError(
            "the code has absolute addresses", code="TW-LIBRARY", where=name
        )
    image = bytearray(linker.size)
    linker.fill(image, 0)
    found = linker.symbols
    image[: tables.end] = bytes(tables.start) + tables.body(found, linker.spans)
    dynamic = tables.dynamic()
    rows = [*tables.rows(), *map(_of_span, linker.spans)]
    rows.append(_Row(".dynamic", 6, 3, len(image), len(dynamic), _STRTAB, 0, 16))
    loaded = [(READ, 0, body), *((p, a, b - a) for a, b, p in linker.spans)]
    loaded.append((READ | WRITE, len(image), len(dynamic)))
    segments = [(_LOAD, p, at, size, page) for p, at, size in loaded]
    segments.append((_DYNAMIC, READ | WRITE, len(image), len(dynamic), 8))
    segments.append((_STACK, READ | WRITE, 0, 0, 16))
    image += dynamic
    names, headers = _section_table(rows, len(image))
    image += names
    assert len(segments) <= _MOST_SEGMENTS
    head = _header(codes[0], machine, found.get(entry or "", 0), len(image), len(rows))
    texts = [_segment(*s) for s in segments]
    image[: tables.start] = _padded(head + b"".join(texts), tables.start)
    _HEADER_COUNT.pack_into(image, _COUNT_AT, len(texts))
    return bytes(image + headers)


class _Tables:
    """The tables in which a loader finds functions, after the headers: hashes, symbols, names."""

    def __init__(self, name: str, functions: Sequence[str]) -> None:
        self.functions = tuple(functions)
        # The name of a file may have bytes as surrogates, which become bytes again.
        coded = [t.encode(errors="surrogateescape") for t in ("", *functions, name)]
        texts = [code + b"\0" for code in coded]
        self._strings = b"".join(texts)
        starts = [sum(map(len, texts[:n])) for n in range(len(texts))]
        self._names = starts[1:-1]
        self._soname = starts[-1]
        self.start = _HEADER.size + _MOST_SEGMENTS * _SEGMENT.size
        # One bucket with a chain of all symbols: there are few.
        count = len(functions) + 1
        chain = [0, *range(2, count), 0]
        self._hash = struct.pack(f"<{3 + count}I", 1, count, 1, *chain)
        self._symbols_at = _up(self.start + len(self._hash), 8)
        self._strings_at = self._symbols_at + count * _SYMBOL.size
        self.end = self._strings_at + len(self._strings)

    def body(self, addresses: Mapping[str, int], spans: Sequence[Span]) -> bytes:
        """The contents of the tables. addresses: of the functions, from the start of the file."""
        made = bytearray(self._hash)
        made += bytes(self._symbols_at - self.start - len(made) + _SYMBOL.size)
        for name, at in zip(self.functions, self._names, strict=True):
            value = addresses[name]
            held = [n for n, (a, b, _) in enumerate(spans) if a <= value < b]
            function = elf.STB_GLOBAL << 4 | elf.STT_FUNC
            made += _SYMBOL.pack(at, function, 0, _FIRST + held[0], value, 0)
        return bytes(made + self._strings)

    def rows(self) -> list[_Row]:
        """The section headers of the tables."""
        symbols = self._strings_at - self._symbols_at
        sizes = len(self._hash), symbols, len(self._strings)
        return [
            _Row(".hash", 5, 2, self.start, sizes[0], _SYMTAB, 0, 4),
            _Row(".dynsym", 11, 2, self._symbols_at, sizes[1], _STRTAB, 1, 24),
            _Row(".dynstr", 3, 2, self._strings_at, sizes[2]),
        ]

    def dynamic(self) -> bytes:
        """The dynamic section: the library's name, and the addresses of the tables."""
        entries = [
            (14, self._soname),  # DT_SONAME
            (4, self.start),  # DT_HASH
            (5, self._strings_at),  # DT_STRTAB
            (6, self._symbols_at),  # DT_SYMTAB
            (10, len(self._strings)),  # DT_STRSZ
            (11, _SYMBOL.size),  # DT_SYMENT
            (0, 0),
        ]
        return b"".join(struct.pack("<QQ", *entry) for entry in entries)


def _of_span(span: Span) -> _Row:
    start, end, protection = span
    name, flags = _SECTIONS[protection]
    return _Row(name, elf.SHT_PROGBITS, flags, start, end - start)


def _section_table(rows: Sequence[_Row], at: int) -> tuple[bytes, bytes]:
    """The table of section names, which starts at `at`, and the section headers after it."""
    titles = ["", *(r.name for r in rows), ".shstrtab"]
    texts = [title.encode() + b"\0" for title in titles]
    names = b"".join(texts)
    all_rows = [*rows, _Row(".shstrtab", elf.SHT_STRTAB, 0, at, len(names))]
    headers = bytes(_SECTION.size)
    for n, r in enumerate(all_rows, 1):
        loaded = r.at if r.flags & elf.SHF_ALLOC else 0
        title = sum(map(len, texts[:n]))
        align = 8 if r.flags else 1
        headers += _SECTION.pack(
            title, r.type, r.flags, loaded, r.at, r.size, r.link, r.info, align, r.entry
        )
    padding = -(at + len(names)) % 8
    return names + bytes(padding), headers


def _header(code: bytes, machine: str, entry: int, sections: int, rows: int) -> bytes:
    """The ELF header.

    sections: the offset of the section headers. rows: the number of sections, not counting the
    empty first one and the table of names.
    """
    (flags,) = struct.unpack_from("<I", code, _FLAGS_AT)
    return _HEADER.pack(
        b"\x7fELF\2\1\1".ljust(16, b"\0"),
        _SHARED,
        _MACHINES[machine],
        1,
        entry,
        _HEADER.size,
        sections,
        flags,
        _HEADER.size,
        _SEGMENT.size,
        0,
        _SECTION.size,
        rows + 2,
        rows + 1,
    )


def _segment(kind: int, protection: int, at: int, size: int, align: int) -> bytes:
    # ELF has these bits in reverse: 1 is executable, 4 is readable.
    flags = protection & WRITE | (4 if protection & READ else 0)
    flags |= 1 if protection & EXEC else 0
    return _SEGMENT.pack(kind, flags, at, at, at, size, size, align)


def _padded(data: bytes, size: int) -> bytes:
    return data + bytes(size - len(data))


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
