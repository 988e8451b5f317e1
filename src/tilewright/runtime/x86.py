"""Decoding x86-64 machine code as far as a profile needs: lengths, jumps, vectors, memory.

Encodings: Intel's Software Developer's Manual, volume 2, chapter 2 and appendix A.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tilewright.base.dataclass import dataclass

_PREFIXES: Final = frozenset(
    (0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3)
)
_JUMPS: Final = frozenset((0xE9, 0xEB, *range(0x70, 0x80)))


@dataclass(frozen=True, slots=True)
class X86Instruction:
    """One instruction at `start`, up to `end`.

    map: 0 for opcodes of one byte, 1 for those after 0F, 2 for 0F 38, 3 for 0F 3A. prefix: 0x66,
    0xF2, 0xF3 or 0, as part of the opcode. width: bytes of the vector registers; 0 for an
    instruction without vector encoding. memory: it addresses memory; stack: through the stack
    pointer. target: of a jump.
    """

    start: int
    end: int
    map: int
    opcode: int
    prefix: int
    width: int = 0
    memory: bool = False
    stack: bool = False
    target: int | None = None


def decode(code: bytes | memoryview) -> Iterator[X86Instruction]:
    """The instructions of a stretch of code, one after the other; nothing after its end."""
    reader = _Reader(bytes(code))
    while reader.at < len(reader.code):
        try:
            yield reader.instruction()
        except IndexError:
            return


class _Reader:
    def __init__(self, code: bytes) -> None:
        self.code = code
        self.at = 0

    def byte(self) -> int:
        """The next byte, taken."""
        value = self.code[self.at]
        self.at += 1
        return value

    def instruction(self) -> X86Instruction:
        """The instruction here. Raises IndexError where the code ends within it."""
        start, prefix = self.at, 0
        while self.code[self.at] in _PREFIXES:
            found = self.byte()
            prefix = found if found in (0x66, 0xF2, 0xF3) else prefix
        rex = self.byte() if self.code[self.at] & 0xF0 == 0x40 else 0
        first = self.byte()
        if first in (0xC4, 0xC5, 0x62):
            return self._vector(start, first)
        if first != 0x0F:
            return self._plain(start, first, prefix, rex)
        table, opcode = 1, self.byte()
        if opcode in (0x38, 0x3A):
            table, opcode = (2 if opcode == 0x38 else 3), self.byte()
        if table == 1 and 0x80 <= opcode < 0x90:
            return self._jump(start, 1, opcode, 4)
        known = table > 1 or _has_operands(opcode)
        memory, stack, _ = self._operands(bool(rex & 1)) if known else _NONE
        self.at += table == 3 or (table == 1 and opcode in _IMMEDIATE_0F)
        width = 16 if table > 1 or _is_sse(opcode) else 0
        return X86Instruction(
            start, self.at, table, opcode, prefix, width, memory, stack
        )

    def _vector(self, start: int, first: int) -> X86Instruction:
        """An instruction with a VEX (C4, C5) or EVEX (62) prefix."""
        # The bit that makes the base register one of the upper eight is stored inverted.
        middle = 0x21 if first == 0xC5 else self.byte()
        table, upper, last = (
            middle & (7 if first == 0x62 else 31),
            not middle & 0x20,
            self.byte(),
        )
        length = self.byte() >> 5 & 3 if first == 0x62 else last >> 2 & 1
        prefix = (0, 0x66, 0xF3, 0xF2)[last & 3]
        opcode = self.byte()
        nothing = first != 0x62 and table == 1 and opcode == 0x77
        memory, stack, _ = _NONE if nothing else self._operands(upper)
        self.at += table == 3 or (table == 1 and opcode in _IMMEDIATE_0F)
        return X86Instruction(
            start, self.at, table, opcode, prefix, 16 << length, memory, stack
        )

    def _plain(self, start: int, opcode: int, prefix: int, rex: int) -> X86Instruction:
        if opcode in _JUMPS:
            return self._jump(start, 0, opcode, 4 if opcode == 0xE9 else 1)
        memory, stack, group = (
            self._operands(bool(rex & 1)) if opcode in _OPERANDS else _NONE
        )
        word = 2 if prefix == 0x66 else 4
        if opcode in _BYTE or (opcode == 0xF6 and group < 2):
            self.at += 1
        elif opcode in _WORD or (opcode == 0xF7 and group < 2):
            self.at += word
        elif 0xB8 <= opcode < 0xC0:
            self.at += 8 if rex & 8 else word
        elif opcode == 0xE8:
            self.at += 4
        elif opcode in (0xC2, 0xC8, *range(0xA0, 0xA4)):
            self.at += {0xC2: 2, 0xC8: 3}.get(opcode, 8)
        return X86Instruction(start, self.at, 0, opcode, prefix, 0, memory, stack)

    def _jump(self, start: int, table: int, opcode: int, size: int) -> X86Instruction:
        raw = self.code[self.at : self.at + size]
        self.at += size
        target = self.at + int.from_bytes(raw, "little", signed=True)
        return X86Instruction(start, self.at, table, opcode, 0, target=target)

    def _operands(self, upper: bool) -> tuple[bool, bool, int]:
        """Past ModRM, SIB and displacement: in memory, on the stack, and ModRM's middle field.

        upper: the base register is one of the upper eight, so not the stack pointer.
        """
        modrm = self.byte()
        mode, group, base = modrm >> 6, modrm >> 3 & 7, modrm & 7
        if mode == 3:
            return False, False, group
        stack = False
        if base == 4:
            base = self.byte() & 7
            stack = base == 4 and not upper
        self.at += 4 if mode == 2 or (mode == 0 and base == 5) else mode
        return True, stack, group


_NONE: Final = (False, False, 0)
_OPERANDS: Final = frozenset(
    [
        *(n for n in range(0x40) if n & 7 < 4),
        *(0x63, 0x69, 0x6B, 0xC0, 0xC1, 0xC6, 0xC7, 0xF6, 0xF7, 0xFE, 0xFF),
        *range(0x80, 0x90),
        *range(0xD0, 0xD4),
        *range(0xD8, 0xE0),
    ]
)
_BYTE: Final = frozenset(
    [
        *(n for n in range(0x40) if n & 7 == 4),
        *(0x6A, 0x6B, 0x80, 0x82, 0x83, 0xA8, 0xC0, 0xC1, 0xC6, 0xCD),
        *range(0xB0, 0xB8),
        *range(0xE0, 0xE8),
    ]
)
_WORD: Final = frozenset(
    [*(n for n in range(0x40) if n & 7 == 5), 0x68, 0x69, 0x81, 0xA9, 0xC7]
)
_IMMEDIATE_0F: Final = frozenset(
    (0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6)
)


def _has_operands(opcode: int) -> bool:
    """Whether an opcode after 0F has a ModRM byte."""
    alone = (
        0x05,
        0x06,
        0x07,
        0x08,
        0x09,
        0x0B,
        0x77,
        0xA0,
        0xA1,
        0xA2,
        0xA8,
        0xA9,
        0xAA,
    )
    return not (opcode in alone or 0x30 <= opcode < 0x38 or 0xC8 <= opcode < 0xD0)


def _is_sse(opcode: int) -> bool:
    ranges = (
        (0x10, 0x18),
        (0x28, 0x30),
        (0x50, 0x80),
        (0xC2, 0xC3),
        (0xC4, 0xC7),
        (0xD0, 0x100),
    )
    return any(low <= opcode < high for low, high in ranges)
