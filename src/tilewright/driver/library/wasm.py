"""Links one relocatable object into a WebAssembly module: places its stack and data in memory.

The module imports nothing. It exports its functions, its memory and `__heap_base`, the address from
which the host may place tensors and the workspace. Formats: WebAssembly 1.0, section 5; relocations
and symbols as in WebAssembly's tool conventions, "Linking".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from tilewright.base import leb128
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError
from tilewright.base.leb128 import Reader

_TYPE, _FUNCTION, _TABLE, _MEMORY, _GLOBAL = 1, 3, 4, 5, 6
_EXPORT, _ELEMENT, _CODE, _DATA, _CUSTOM = 7, 9, 10, 11, 0
_SEGMENT_INFO, _SYMBOLS = 5, 8  # parts of the section "linking"
_A_FUNCTION, _A_DATUM, _A_SECTION = 0, 1, 3  # kinds of symbols
_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40  # flags of symbols
_I32: Final = 0x7F
_CONST, _END = 0x41, 0x0B
_PAGE: Final = 1 << 16

STACK: Final = 256 << 10  # bytes, from address 0: an overflow traps


@dataclass(frozen=True, slots=True)
class _Relocation:
    type: int
    at: int
    symbol: int
    addend: int


@dataclass(slots=True)
class _Object:
    """The parts of an object that the linker needs.

    sections, relocations: by section number. order: the section numbers in file order. functions:
    the index of each function, by name. data: (segment, offset) of each data symbol. indices: the
    function index of each function symbol. alignments: of the segments.
    """

    sections: dict[int, bytes] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    relocations: dict[int, list[_Relocation]] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    data: dict[int, tuple[int, int]] = field(default_factory=dict)
    indices: dict[int, int] = field(default_factory=dict)
    alignments: list[int] = field(default_factory=list)


def module(code: bytes, functions: Sequence[str]) -> bytes:
    """Link an object, which imports no functions, into a module that exports `functions`.

    Raises CompileError for an unknown relocation type.
    """
    found = _parsed(code)
    segments = list(_segments(found.sections.get(_DATA, b"\0")))
    places, end = _placed(segments, found.alignments)
    table = _Table()
    patched = {
        number: _patched(found, number, places, table)
        for number in (_CODE, _DATA)
        if number in found.sections
    }
    heap = -(-end // 64) * 64
    made = {
        _TYPE: found.sections[_TYPE],
        _FUNCTION: found.sections[_FUNCTION],
        _TABLE: b"\1\x70\0" + leb128.unsigned(len(table.slots) + 1),
        _MEMORY: b"\1\0" + leb128.unsigned(-(-heap // _PAGE)),
        _GLOBAL: b"\2" + _global(STACK, True) + _global(heap, False),
        _EXPORT: _exports({f: found.functions[f] for f in functions}),
        _ELEMENT: _elements(table),
        _CODE: patched[_CODE],
        _DATA: _data(_segments(patched.get(_DATA, b"\0")), places),
    }
    sections = (
        bytes([number]) + leb128.unsigned(len(body)) + body
        for number, body in made.items()
        if body
    )
    return code[:8] + b"".join(sections)


class _Table:
    """Functions whose addresses are taken; an address is an index into the table, from 1."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}

    def slot(self, function: int) -> int:
        return self.slots.setdefault(function, len(self.slots) + 1)


def _parsed(code: bytes) -> _Object:
    found = _Object()
    reader = Reader(code, 8)
    while not reader.ended:
        number = reader.byte()
        body = reader.bytes(reader.unsigned())
        found.order.append(number)
        if number != _CUSTOM:
            found.sections[number] = body
            continue
        inner = Reader(body)
        name = inner.name()
        if name == "linking":
            _read_linking(inner, found)
        elif name.startswith("reloc."):
            section = inner.unsigned()
            found.relocations[found.order[section]] = list(_relocations(inner))
    return found


def _relocations(reader: Reader) -> Iterator[_Relocation]:
    for _ in range(reader.unsigned()):
        kind = reader.byte()
        at = reader.unsigned()
        symbol = reader.unsigned()
        addend = reader.signed() if kind in _WITH_ADDEND else 0
        yield _Relocation(kind, at, symbol, addend)


def _read_linking(reader: Reader, found: _Object) -> None:
    reader.unsigned()  # the version
    while not reader.ended:
        kind = reader.byte()
        part = Reader(reader.bytes(reader.unsigned()))
        if kind == _SEGMENT_INFO:
            for _ in range(part.unsigned()):
                part.name()
                found.alignments.append(1 << part.unsigned())
                part.unsigned()
        elif kind == _SYMBOLS:
            for number in range(part.unsigned()):
                _read_symbol(part, number, found)


def _read_symbol(part: Reader, number: int, found: _Object) -> None:
    kind, flags = part.byte(), part.unsigned()
    if kind == _A_DATUM:
        part.name()
        if not flags & _UNDEFINED:
            found.data[number] = part.unsigned(), part.unsigned()
            part.unsigned()
        return
    index = part.unsigned()
    if kind == _A_SECTION:
        return
    if not flags & _UNDEFINED or flags & _EXPLICIT_NAME:
        name = part.name()
        if kind == _A_FUNCTION:
            found.functions[name] = index
    if kind == _A_FUNCTION:
        found.indices[number] = index


def _segments(body: bytes) -> Iterator[bytes]:
    reader = Reader(body)
    for _ in range(reader.unsigned()):
        reader.unsigned()
        while reader.byte() != _END:
            reader.signed()
        yield reader.bytes(reader.unsigned())


def _placed(
    segments: Sequence[bytes], alignments: Sequence[int]
) -> tuple[list[int], int]:
    """The address of each segment, after the stack, and the end of the last segment."""
    at, places = STACK, []
    for data, align in zip(segments, alignments, strict=True):
        at = -(-at // align) * align
        places.append(at)
        at += len(data)
    return places, at


def _patched(
    found: _Object, number: int, places: Sequence[int], table: _Table
) -> bytes:
    body = bytearray(found.sections[number])
    for r in found.relocations.get(number, ()):
        if r.type in _UNCHANGED:
            continue
        if r.type in (1, 2):
            value = table.slot(found.indices[r.symbol])
        elif r.type in (3, 4, 5):
            segment, offset = found.data[r.symbol]
            value = places[segment] + offset + r.addend
        else:
            raise CompileError(
                f"unknown WebAssembly relocation type {r.type}", code="TW-OBJECT"
            )
        text = _TEXTS[r.type](value)
        body[r.at : r.at + len(text)] = text
    return bytes(body)


def _word(value: int) -> bytes:
    return value.to_bytes(4, "little")


# Indices of functions, types, globals and tables do not change: there is only one object.
_UNCHANGED: Final = frozenset({0, 6, 7, 20})
_WITH_ADDEND: Final = frozenset({3, 4, 5, 8, 9})
_TEXTS: Final[Mapping[int, Callable[[int], bytes]]] = {
    1: leb128.padded_signed,  # R_WASM_TABLE_INDEX_SLEB
    2: _word,  # R_WASM_TABLE_INDEX_I32
    3: leb128.padded,  # R_WASM_MEMORY_ADDR_LEB
    4: leb128.padded_signed,  # R_WASM_MEMORY_ADDR_SLEB
    5: _word,  # R_WASM_MEMORY_ADDR_I32
}


def _constant(value: int) -> bytes:
    return bytes([_CONST]) + leb128.signed(value) + bytes([_END])


def _global(value: int, changes: bool) -> bytes:
    return bytes([_I32, changes]) + _constant(value)


def _exports(functions: dict[str, int]) -> bytes:
    rows = [leb128.name("memory") + b"\2\0", leb128.name("__heap_base") + b"\3\1"]
    rows += [leb128.name(n) + b"\0" + leb128.unsigned(i) for n, i in functions.items()]
    return leb128.unsigned(len(rows)) + b"".join(rows)


def _elements(table: _Table) -> bytes:
    if not table.slots:
        return b""
    indices = b"".join(map(leb128.unsigned, table.slots))
    return b"\1\0" + _constant(1) + leb128.unsigned(len(table.slots)) + indices


def _data(segments: Iterator[bytes], places: Sequence[int]) -> bytes:
    rows = [
        b"\0" + _constant(at) + leb128.unsigned(len(data)) + data
        for at, data in zip(places, segments, strict=True)
    ]
    return leb128.unsigned(len(rows)) + b"".join(rows)
