"""Registering the names of loaded kernels with gdb, through its JIT interface.

gdb looks for two symbols in the process, `__jit_debug_descriptor` and `__jit_debug_register_code`
("JIT Compilation Interface" in its manual). Nothing in Python defines them, so a shared library of
one instruction and 24 bytes of data, written here, is loaded to hold them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from tilewright.runtime.elf import parse

_PAGE: Final = 0x1000
_REGISTER: Final = b"__jit_debug_register_code"
_DESCRIPTOR: Final = b"__jit_debug_descriptor"
_RETURN: Final = b"\xf3\x0f\x1e\xfa\xc3"  # endbr64; ret
_REGISTER_ACTION: Final = 1
# Where the parts of the library are, in the file and in memory.
_HASH_AT: Final = 0x100
_SYMBOLS_AT: Final = 0x120
_STRINGS_AT: Final = 0x180
_CODE_AT: Final = 0x200
_DYNAMIC_AT: Final = _PAGE
_DATA_AT: Final = _DYNAMIC_AT + 0x80
_SECTION_ADDRESS: Final = 16  # offset of sh_addr in a section header
_lock: Final = threading.Lock()


class _CodeEntry(ctypes.Structure):
    pass


_CodeEntry._fields_ = [
    ("next", ctypes.POINTER(_CodeEntry)),
    ("previous", ctypes.POINTER(_CodeEntry)),
    ("file", ctypes.c_char_p),
    ("size", ctypes.c_uint64),
]


class _Descriptor(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("action", ctypes.c_uint32),
        ("relevant", ctypes.POINTER(_CodeEntry)),
        ("first", ctypes.POINTER(_CodeEntry)),
    ]


_entries: Final[list[_CodeEntry]] = []  # gdb reads them at any time: never freed


def register(code: bytes | memoryview, addresses: Mapping[int, int]) -> None:
    """Show gdb an object whose sections (by index) were loaded at these addresses."""
    library, descriptor = _library()
    with _lock:
        entry = _CodeEntry(file=_placed(bytes(code), addresses), size=len(code))
        if descriptor.first:
            entry.next = descriptor.first
            descriptor.first.contents.previous = ctypes.pointer(entry)
        _entries.append(entry)
        descriptor.first = descriptor.relevant = ctypes.pointer(entry)
        descriptor.action = _REGISTER_ACTION
        library[_REGISTER.decode()]()
        descriptor.action = 0


def _placed(code: bytes, addresses: Mapping[int, int]) -> bytes:
    """The object with each section header's address filled in, as gdb expects it."""
    parse(code)
    headers, size = struct.unpack_from("<Q", code, 40)[0], 64
    placed = bytearray(code)
    for index, address in addresses.items():
        struct.pack_into(
            "<Q", placed, headers + index * size + _SECTION_ADDRESS, address
        )
    return bytes(placed)


@cache
def _library() -> tuple[ctypes.CDLL, _Descriptor]:
    handle, path = tempfile.mkstemp(prefix="tilewright-gdb-", suffix=".so")
    with os.fdopen(handle, "wb") as file:
        file.write(shared_library())
    # gdb opens the file whenever it attaches, so it stays until the process ends.
    atexit.register(_remove, path, os.getpid())
    library = ctypes.CDLL(path)
    descriptor: Any = _Descriptor.in_dll(library, _DESCRIPTOR.decode())
    descriptor.version = 1
    return library, descriptor


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):
        os.unlink(path)


class _Section(NamedTuple):
    """A section header, but for the offset of its name."""

    name: bytes
    kind: int
    rights: int
    at: int
    size: int
    link: int
    info: int
    entry: int

    def packed(self, name: int) -> bytes:
        """The header; name: where its name begins."""
        address = self.at if self.rights else 0
        place = (address, self.at, self.size, self.link, self.info)
        return struct.pack(
            "<IIQQQQIIQQ", name, self.kind, self.rights, *place, 8, self.entry
        )


def shared_library() -> bytes:
    """An x86-64 ELF shared library that defines gdb's two symbols.

    Page 0: headers, dynamic symbols, code. Page 1: the dynamic section and the descriptor.
    """
    strings = b"\0" + _REGISTER + b"\0" + _DESCRIPTOR + b"\0"
    symbols = _symbols(strings)
    dynamic = _dynamic(strings)
    # One bucket whose chain holds both symbols: a lookup compares names only.
    table = struct.pack("<6I", 1, 3, 1, 0, 2, 0)
    names = b"\0.hash\0.dynsym\0.dynstr\0.text\0.dynamic\0.data\0.shstrtab\0"
    data_size = ctypes.sizeof(_Descriptor)
    end = _DATA_AT + data_size
    # name, type, flags, address, size, link, info, entry size
    sections = (
        _Section(b".hash", 5, 2, _HASH_AT, len(table), 2, 0, 4),
        _Section(b".dynsym", 11, 2, _SYMBOLS_AT, len(symbols), 3, 1, 24),
        _Section(b".dynstr", 3, 2, _STRINGS_AT, len(strings), 0, 0, 0),
        _Section(b".text", 1, 6, _CODE_AT, len(_RETURN), 0, 0, 0),
        _Section(b".dynamic", 6, 3, _DYNAMIC_AT, len(dynamic), 3, 0, 16),
        _Section(b".data", 1, 3, _DATA_AT, data_size, 0, 0, 0),
        _Section(b".shstrtab", 3, 0, end, len(names), 0, 0, 0),
    )
    headers_at = -(-(end + len(names)) // 8) * 8
    image = bytearray(headers_at)
    head = _file_header(headers_at, len(sections)) + _segments(len(dynamic), end)
    for at, content in (
        (0, head),
        (_HASH_AT, table),
        (_SYMBOLS_AT, symbols),
        (_STRINGS_AT, strings),
        (_CODE_AT, _RETURN),
        (_DYNAMIC_AT, dynamic),
        (end, names),
    ):
        image[at : at + len(content)] = content
    headers = [section.packed(names.index(section.name)) for section in sections]
    return bytes(image) + bytes(64) + b"".join(headers)


def _symbols(strings: bytes) -> bytes:
    """The table of dynamic symbols: none, the function and the descriptor."""
    size = ctypes.sizeof(_Descriptor)
    rows = (
        (_REGISTER, 2, 4, _CODE_AT, len(_RETURN)),
        (_DESCRIPTOR, 1, 6, _DATA_AT, size),
    )
    packed = [
        struct.pack("<IBBHQQ", strings.index(name), 1 << 4 | kind, 0, section, at, size)
        for name, kind, section, at, size in rows
    ]
    return bytes(24) + b"".join(packed)


def _dynamic(strings: bytes) -> bytes:
    """The dynamic section: where the loader finds the tables, and their sizes."""
    rows = (
        (4, _HASH_AT),
        (5, _STRINGS_AT),
        (6, _SYMBOLS_AT),
        (10, len(strings)),
        (11, 24),
        (0, 0),
    )
    return b"".join(struct.pack("<QQ", tag, value) for tag, value in rows)


def _file_header(headers_at: int, sections: int) -> bytes:
    """The ELF header; headers_at: where the section headers are."""
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    counts = (64, 56, 3, 64, sections + 1, sections)
    return struct.pack("<16sHHIQQQI6H", ident, 3, 62, 1, 0, 64, headers_at, 0, *counts)


def _segments(dynamic: int, end: int) -> bytes:
    """The program headers. dynamic: size of that section; end: of the descriptor."""
    rows = (
        (1, 5, 0, _CODE_AT + len(_RETURN), _PAGE),
        (1, 6, _DYNAMIC_AT, end - _DYNAMIC_AT, _PAGE),
        (2, 6, _DYNAMIC_AT, dynamic, 8),
    )
    packed = [
        struct.pack("<IIQQQQQQ", kind, rights, at, at, at, size, size, align)
        for kind, rights, at, size, align in rows
    ]
    return b"".join(packed)
