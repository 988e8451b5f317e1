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
from typing import Any, Final

from tilewright.runtime.elf import parse

_PAGE: Final = 0x1000
_REGISTER: Final = b"__jit_debug_register_code"
_DESCRIPTOR: Final = b"__jit_debug_descriptor"
_RETURN: Final = b"\xf3\x0f\x1e\xfa\xc3"  # endbr64; ret
_REGISTER_ACTION: Final = 1
_SECTION_ADDRESS: Final = 16  # offset of sh_addr in a section header
_lock: Final = threading.Lock()


class _Entry(ctypes.Structure):
    pass


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("previous", ctypes.POINTER(_Entry)),
    ("file", ctypes.c_char_p),
    ("size", ctypes.c_uint64),
]


class _Descriptor(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("action", ctypes.c_uint32),
        ("relevant", ctypes.POINTER(_Entry)),
        ("first", ctypes.POINTER(_Entry)),
    ]


_entries: Final[list[_Entry]] = []  # gdb reads them at any time: never freed


def register(code: bytes | memoryview, addresses: Mapping[int, int]) -> None:
    """Show gdb an object whose sections (by index) were loaded at these addresses."""
    library, descriptor = _library()
    with _lock:
        entry = _Entry(file=_placed(bytes(code), addresses), size=len(code))
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


def shared_library() -> bytes:
    """An x86-64 ELF shared library that defines gdb's two symbols.

    Page 0: headers, dynamic symbols, code. Page 1: the dynamic section and the descriptor.
    """
    strings = b"\0" + _REGISTER + b"\0" + _DESCRIPTOR + b"\0"
    descriptor_size = ctypes.sizeof(_Descriptor)
    hash_at, symbols_at, strings_at, code_at, dynamic_at = (
        0x100,
        0x120,
        0x180,
        0x200,
        _PAGE,
    )
    data_at = dynamic_at + 0x80
    # One bucket whose chain holds both symbols: a lookup compares names only.
    table = struct.pack("<6I", 1, 3, 1, 0, 2, 0)
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", strings.index(name), 1 << 4 | kind, 0, section, at, size)
        for name, kind, section, at, size in (
            (_REGISTER, 2, 4, code_at, len(_RETURN)),
            (_DESCRIPTOR, 1, 6, data_at, descriptor_size),
        )
    )
    dynamic = b"".join(
        struct.pack("<QQ", tag, value)
        for tag, value in (
            (4, hash_at),
            (5, strings_at),
            (6, symbols_at),
            (10, len(strings)),
            (11, 24),
            (0, 0),
        )
    )
    names = b"\0.hash\0.dynsym\0.dynstr\0.text\0.dynamic\0.data\0.shstrtab\0"
    end = data_at + descriptor_size
    # name, type, flags, address, size, link, info, entry size
    sections = (
        (b".hash", 5, 2, hash_at, len(table), 2, 0, 4),
        (b".dynsym", 11, 2, symbols_at, len(symbols), 3, 1, 24),
        (b".dynstr", 3, 2, strings_at, len(strings), 0, 0, 0),
        (b".text", 1, 6, code_at, len(_RETURN), 0, 0, 0),
        (b".dynamic", 6, 3, dynamic_at, len(dynamic), 3, 0, 16),
        (b".data", 1, 3, data_at, descriptor_size, 0, 0, 0),
        (b".shstrtab", 3, 0, end, len(names), 0, 0, 0),
    )
    headers_at = -(-(end + len(names)) // 8) * 8
    image = bytearray(headers_at)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    counts = (64, 56, 3, 64, len(sections) + 1, len(sections))
    struct.pack_into(
        "<16sHHIQQQI6H", image, 0, ident, 3, 62, 1, 0, 64, headers_at, 0, *counts
    )
    segments = (
        (1, 5, 0, code_at + len(_RETURN), _PAGE),
        (1, 6, dynamic_at, end - dynamic_at, _PAGE),
        (2, 6, dynamic_at, len(dynamic), 8),
    )
    for n, (kind, rights, at, size, align) in enumerate(segments):
        struct.pack_into(
            "<IIQQQQQQ", image, 64 + 56 * n, kind, rights, at, at, at, size, size, align
        )
    for at, content in (
        (hash_at, table),
        (symbols_at, symbols),
        (strings_at, strings),
        (code_at, _RETURN),
        (dynamic_at, dynamic),
        (end, names),
    ):
        image[at : at + len(content)] = content
    rows = [bytes(64)]
    for name, kind, rights, at, size, link, info, entry in sections:
        address = at if rights else 0
        row = (names.index(name), kind, rights, address, at, size, link, info, 8, entry)
        rows.append(struct.pack("<IIQQQQIIQQ", *row))
    return bytes(image) + b"".join(rows)
