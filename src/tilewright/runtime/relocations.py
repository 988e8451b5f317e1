"""The effect of each relocation type, a row per type and architecture.

Sources: the x86-64 psABI; ELF for the Arm 64-bit Architecture; the RISC-V ELF psABI. Letters as
there: S the symbol, A the addend, P the place, G the symbol's slot in the address table, L the
content of the place, H the address that the upper half of a pair refers to, minus its place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tilewright.base.dataclass import dataclass


class PatchedBytes(Protocol):
    """Bytes that are patched."""

    def __getitem__(self, place: slice, /) -> bytes | bytearray: ...
    def __setitem__(self, place: slice, value: bytes, /) -> None: ...


Put = Callable[[PatchedBytes, int, int], None]  # memory, place, value; OverflowError


@dataclass(frozen=True, slots=True)
class RelocationRule:
    """How the value of a relocation is made, and how `width` bytes hold it."""

    formula: str
    width: int
    put: Put


def _plain(layout: str) -> Put:
    """The value as its own number."""
    form = struct.Struct(layout)

    def put(memory: PatchedBytes, at: int, value: int) -> None:
        if layout[1].isupper():
            value %= 1 << 8 * form.size
        try:
            memory[at : at + form.size] = form.pack(value)
        except struct.error as e:
            raise OverflowError(value) from e

    return put


def _word(fields: Callable[[int], int], mask: int, bits: int, shift: int) -> Put:
    """Bits of the instruction at the place.

    fields: the bits, taken from the value without its `shift` lowest bits, which must be 0. bits:
    the maximum width of the signed value; 0: unlimited.
    """

    def put(memory: PatchedBytes, at: int, value: int) -> None:
        most = 1 << bits + shift - 1 if bits else 0
        if value & (1 << shift) - 1 or (bits and not -most <= value < most):
            raise OverflowError(value)
        (old,) = struct.unpack("<I", memory[at : at + 4])
        new = old & ~mask | fields(value >> shift) & mask
        memory[at : at + 4] = struct.pack("<I", new)

    return put


def _at(low: int, count: int, bits: int = 0, shift: int = 0) -> Put:
    """One field of this many bits."""
    mask = ((1 << count) - 1) << low
    return _word(lambda v: v << low, mask, bits, shift)


def _adr(value: int) -> int:
    return (value & 3) << 29 | (value >> 2 & 0x7FFFF) << 5


def _low(shift: int) -> RelocationRule:
    """The page offset of the loaded object, in units of its size."""
    return RelocationRule("lo12(S+A)", 4, _at(10, 12, shift=shift))


def _upper(value: int) -> int:
    """The upper 20 bits, for a lower part with a sign."""
    return (value + 0x800) & 0xFFFFF000


def _branch(value: int) -> int:
    """The immediate of a RISC-V branch (type B), in units of 2 bytes."""
    bits = value << 1
    return (
        (bits >> 12 & 1) << 31
        | (bits >> 5 & 0x3F) << 25
        | (bits >> 1 & 0xF) << 8
        | (bits >> 11 & 1) << 7
    )


def _jump(value: int) -> int:
    """The immediate of a RISC-V jump (type J), in units of 2 bytes."""
    bits = value << 1
    return (
        (bits >> 20 & 1) << 31
        | (bits >> 1 & 0x3FF) << 21
        | (bits >> 11 & 1) << 20
        | (bits >> 12 & 0xFF) << 12
    )


def _call(memory: PatchedBytes, at: int, value: int) -> None:
    """A pair of auipc and jalr."""
    _word(_upper, 0xFFFFF000, 32, 0)(memory, at, value)
    _word(lambda v: v << 20, 0xFFF00000, 0, 0)(memory, at + 4, value)


def _store(value: int) -> int:
    """The immediate of a RISC-V store (type S)."""
    return (value >> 5 & 0x7F) << 25 | (value & 0x1F) << 7


_X86_64: Final = {
    1: RelocationRule("S+A", 8, _plain("<Q")),  # R_X86_64_64
    2: RelocationRule("S+A-P", 4, _plain("<i")),  # R_X86_64_PC32
    4: RelocationRule("S+A-P", 4, _plain("<i")),  # R_X86_64_PLT32: nothing is lazy
    9: RelocationRule("G+A-P", 4, _plain("<i")),  # R_X86_64_GOTPCREL
    24: RelocationRule("S+A-P", 8, _plain("<q")),  # R_X86_64_PC64
    41: RelocationRule("G+A-P", 4, _plain("<i")),  # R_X86_64_GOTPCRELX
    42: RelocationRule("G+A-P", 4, _plain("<i")),  # R_X86_64_REX_GOTPCRELX
}
_AARCH64: Final = {
    257: RelocationRule("S+A", 8, _plain("<Q")),  # R_AARCH64_ABS64
    260: RelocationRule("S+A-P", 8, _plain("<q")),  # R_AARCH64_PREL64
    261: RelocationRule("S+A-P", 4, _plain("<i")),  # R_AARCH64_PREL32
    274: RelocationRule(
        "S+A-P", 4, _word(_adr, 0x60FFFFE0, 21, 0)
    ),  # R_AARCH64_ADR_PREL_LO21
    275: RelocationRule("page(S+A)-page(P)", 4, _word(_adr, 0x60FFFFE0, 21, 12)),
    277: _low(0),  # R_AARCH64_ADD_ABS_LO12_NC
    278: _low(0),  # R_AARCH64_LDST8_ABS_LO12_NC
    280: RelocationRule("S+A-P", 4, _at(5, 19, 19, 2)),  # R_AARCH64_CONDBR19
    282: RelocationRule("S+A-P", 4, _at(0, 26, 26, 2)),  # R_AARCH64_JUMP26
    283: RelocationRule("S+A-P", 4, _at(0, 26, 26, 2)),  # R_AARCH64_CALL26
    284: _low(1),  # R_AARCH64_LDST16_ABS_LO12_NC
    285: _low(2),  # R_AARCH64_LDST32_ABS_LO12_NC
    286: _low(3),  # R_AARCH64_LDST64_ABS_LO12_NC
    299: _low(4),  # R_AARCH64_LDST128_ABS_LO12_NC
}
_RISCV64: Final = {
    2: RelocationRule("S+A", 8, _plain("<Q")),  # R_RISCV_64
    16: RelocationRule("S+A-P", 4, _word(_branch, 0xFE000F80, 12, 1)),  # R_RISCV_BRANCH
    17: RelocationRule("S+A-P", 4, _word(_jump, 0xFFFFF000, 20, 1)),  # R_RISCV_JAL
    18: RelocationRule("S+A-P", 8, _call),  # R_RISCV_CALL
    19: RelocationRule("S+A-P", 8, _call),  # R_RISCV_CALL_PLT: nothing is lazy
    23: RelocationRule(
        "S+A-P", 4, _word(_upper, 0xFFFFF000, 32, 0)
    ),  # R_RISCV_PCREL_HI20
    24: RelocationRule("H", 4, _at(20, 12)),  # R_RISCV_PCREL_LO12_I
    25: RelocationRule("H", 4, _word(_store, 0xFE000F80, 0, 0)),  # R_RISCV_PCREL_LO12_S
    35: RelocationRule("L+S+A", 4, _plain("<I")),  # R_RISCV_ADD32
    39: RelocationRule("L-S-A", 4, _plain("<I")),  # R_RISCV_SUB32
    57: RelocationRule("S+A-P", 4, _plain("<i")),  # R_RISCV_32_PCREL
}
# Types that only allow a linker to shorten code, which none here does.
HINTS: Final[Mapping[str, frozenset[int]]] = {"riscv64": frozenset({43, 51})}
UPPER: Final = 23  # R_RISCV_PCREL_HI20, to which the lower half of a pair refers

RULES: Final[Mapping[str, Mapping[int, RelocationRule]]] = {
    "x86_64": _X86_64,
    "aarch64": _AARCH64,
    "riscv64": _RISCV64,
}
NAMES: Final[Mapping[tuple[str, int], str]] = {
    ("x86_64", number): f"R_X86_64_{name}"
    for number, name in {
        3: "GOT32",
        10: "32",
        11: "32S",
        19: "TLSGD",
        20: "TLSLD",
        22: "GOTTPOFF",
        23: "TPOFF32",
        25: "GOTOFF64",
        26: "GOTPC32",
        27: "GOT64",
    }.items()
}
