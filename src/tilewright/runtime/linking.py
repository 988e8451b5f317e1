"""One link of position-independent ELF objects: places of sections, meanings of symbols, patches.

Where the bytes are in the end, in memory or in a file, is the caller's: `runtime.loader` maps them,
`driver.library.shared` writes them. All sections are in reach of a 32-bit displacement, and symbols
are resolved among these objects only.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import Final

from tilewright.base.errors import ArtifactError
from tilewright.runtime import elf
from tilewright.runtime.elf import ElfObject, Relocation, Section, Symbol
from tilewright.runtime.relocations import (
    HINTS,
    NAMES,
    RULES,
    UPPER,
    PatchedBytes,
    RelocationRule,
)

MAX_IMAGE: Final = 1 << 31  # reach of a 32-bit displacement
READ, WRITE, EXEC = 1, 2, 4

# Unwind tables serve debuggers that read files; nothing here ever unwinds.
_DROPPED_TYPES: Final = (elf.SHT_NOTE, elf.SHT_UNWIND)
_DROPPED_NAMES: Final = (".eh_frame", ".ARM.attributes", ".riscv.attributes")

Span = tuple[int, int, int]  # start, end, protection


class Linker:
    """Links objects of one architecture, which `relocations.RULES` has.

    start: of the first section, in bytes from the base of the image. page: bytes of the unit in
    which memory is protected. place: offset of a section in the image, by object and section.
    """

    def __init__(
        self, objects: Sequence[ElfObject], start: int = 0, page: int = mmap.PAGESIZE
    ) -> None:
        self.objects = objects
        self.page = page
        self.place: dict[tuple[int, int], int] = {}
        self.got: dict[tuple[int, int], int] = {}  # (object, symbol) -> offset
        self.base = 0
        self._globals: dict[str, tuple[int, Symbol]] = {}
        self._collect_globals()
        self.spans = self._lay_out(start)

    @property
    def size(self) -> int:
        """Bytes of the image, whole pages."""
        return self.spans[-1][1]

    @property
    def symbols(self) -> dict[str, int]:
        """The address of every global symbol, once `fill` has said where the image is."""
        return {name: self._address(*found) for name, found in self._globals.items()}

    def fill(self, memory: PatchedBytes, base: int) -> None:
        """Write all sections into the image and patch them for the address `base` of its start.

        Raises ArtifactError for a symbol that no object defines, and for a relocation that is not
        position independent or out of reach.
        """
        self.base = base
        for (number, index), at in self.place.items():
            body = self.objects[number].sections[index].data
            memory[at : at + len(body)] = bytes(body)
        for (number, symbol), at in self.got.items():
            memory[at : at + 8] = struct.pack("<Q", self._value(number, symbol))
        for number, item in enumerate(self.objects):
            uppers = {
                (r.section, r.offset): r for r in item.relocations if r.type == UPPER
            }
            for relocation in item.relocations:
                if (number, relocation.section) in self.place:
                    self._patch(memory, number, relocation, uppers)

    def needs_addresses(self) -> bool:
        """Whether the image has absolute addresses, which depend on where it is loaded."""
        return bool(self.got) or any(
            _rule(item, r).formula == "S+A"
            for number, item in enumerate(self.objects)
            for r in item.relocations
            if (number, r.section) in self.place and not _is_hint(item, r)
        )

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

    def _collect_globals(self) -> None:
        for number, item in enumerate(self.objects):
            for symbol in item.symbols:
                if symbol.binding == elf.STB_LOCAL or symbol.section == elf.SHN_UNDEF:
                    continue
                before = self._globals.get(symbol.name)
                if before is None or before[1].binding == elf.STB_WEAK:
                    self._globals[symbol.name] = (number, symbol)
                elif symbol.binding != elf.STB_WEAK:
                    first = self.objects[before[0]].name
                    raise ArtifactError(
                        f"{first} and {item.name} both define the symbol {symbol.name!r}",
                        code="TW-SYMBOL",
                    )

    def _lay_out(self, at: int) -> list[Span]:
        """Place all sections; the spans of pages with equal rights."""
        spans = []
        first = at
        for protection in (READ | EXEC, READ, READ | WRITE):
            start = at
            for number, item in enumerate(self.objects):
                for index, section in enumerate(item.sections):
                    if _is_loaded(section) and _protection(section, item) == protection:
                        at = _round_up(at, section.align)
                        self.place[number, index] = at
                        at += section.size
            if protection == READ:
                at = self._lay_out_got(_round_up(at, 8))
            at = _round_up(at, self.page)
            if at > MAX_IMAGE:
                raise ArtifactError(
                    f"the code takes over {MAX_IMAGE} bytes", code="TW-OBJECT"
                )
            if at > start:
                spans.append((start, at, protection))
        return spans or [(first, first + self.page, READ)]

    def _lay_out_got(self, at: int) -> int:
        for number, item in enumerate(self.objects):
            for relocation in item.relocations:
                rule = RULES[item.machine].get(relocation.type)
                if rule is None or not rule.formula.startswith("G"):
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
            return self._address(*self._globals[symbol.name])
        if symbol.name not in self._globals:
            raise ArtifactError(
                f"{item.name} needs the symbol {symbol.name!r}, which no object defines",
                code="TW-SYMBOL",
                hint="The artifact is incomplete: compile the model again",
            )
        return self._address(*self._globals[symbol.name])

    def _address(self, number: int, symbol: Symbol) -> int:
        if symbol.section == elf.SHN_ABS:
            return symbol.value
        at = self.place.get((number, symbol.section))
        if at is None:
            raise ArtifactError(
                f"symbol {symbol.name!r} of {self.objects[number].name} is in a section "
                "that is not loaded",
                code="TW-OBJECT",
            )
        return self.base + at + symbol.value

    def _patch(
        self,
        memory: PatchedBytes,
        number: int,
        relocation: Relocation,
        uppers: dict[tuple[int, int], Relocation],
    ) -> None:
        item = self.objects[number]
        if _is_hint(item, relocation):
            return
        section = item.sections[relocation.section]
        rule = _rule(item, relocation)
        if relocation.offset + rule.width > len(section.data):
            raise ArtifactError(
                f"{item.name} has a relocation outside {section.name}", code="TW-OBJECT"
            )
        at = self.place[number, relocation.section] + relocation.offset
        if rule.formula == "H":
            value = self._of_upper(number, relocation, uppers)
        elif rule.formula.startswith("L"):
            held = int.from_bytes(bytes(memory[at : at + rule.width]), "little")
            other = self._value(number, relocation.symbol) + relocation.addend
            value = held + other if rule.formula == "L+S+A" else held - other
        else:
            value = self._computed(rule.formula, number, relocation, at)
        try:
            rule.put(memory, at, value)
        except OverflowError:
            raise ArtifactError(
                f"{item.name} has a relocation in {section.name} that is out of reach",
                code="TW-OBJECT",
            ) from None

    def _computed(
        self, formula: str, number: int, relocation: Relocation, at: int
    ) -> int:
        if formula[0] == "G":
            value = self.base + self.got[number, relocation.symbol]
        else:
            value = self._value(number, relocation.symbol)
        value += relocation.addend
        place = self.base + at
        match formula:
            case "S+A":
                return value
            case "lo12(S+A)":
                return value & 0xFFF
            case "page(S+A)-page(P)":
                return (value & ~0xFFF) - (place & ~0xFFF)
        return value - place

    def _of_upper(
        self,
        number: int,
        relocation: Relocation,
        uppers: dict[tuple[int, int], Relocation],
    ) -> int:
        """The target of the upper half of a pair, to which the symbol of the lower half refers."""
        item = self.objects[number]
        label = item.symbols[relocation.symbol]
        upper = uppers.get((label.section, label.value))
        if upper is None:
            raise ArtifactError(
                f"{item.name} has the lower half of an address without its upper one",
                code="TW-OBJECT",
            )
        at = self.place[number, upper.section] + upper.offset
        return self._computed("S+A-P", number, upper, at)


def _is_hint(item: ElfObject, relocation: Relocation) -> bool:
    return relocation.type == 0 or relocation.type in HINTS.get(item.machine, ())


def _rule(item: ElfObject, relocation: Relocation) -> RelocationRule:
    rule = RULES[item.machine].get(relocation.type)
    if rule is None:
        kind = NAMES.get((item.machine, relocation.type), f"type {relocation.type}")
        where = item.sections[relocation.section].name
        raise ArtifactError(
            f"{item.name} has a relocation {kind} in {where}: not position independent",
            code="TW-OBJECT",
        )
    return rule


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
    return READ | (EXEC if execute else 0) | (WRITE if write else 0)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
