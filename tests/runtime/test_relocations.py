"""Fields of instructions, as the architectures' manuals have them, and what is out of reach."""

from __future__ import annotations

import pytest

from tilewright.runtime.relocations import RULES


def put(machine: str, kind: int, word: int, value: int, size: int = 4) -> int:
    memory = bytearray(word.to_bytes(8, "little"))
    RULES[machine][kind].put(memory, 0, value)
    return int.from_bytes(memory[:size], "little")


@pytest.mark.parametrize(
    ("machine", "kind", "word", "value", "expected"),
    [
        ("aarch64", 283, 0x94000000, 8, 0x94000002),  # bl .+8
        ("aarch64", 283, 0x94000000, -4, 0x97FFFFFF),  # bl .-4
        ("aarch64", 275, 0x90000000, 0x3000, 0xF0000000),  # adrp x0, 3 pages on
        ("aarch64", 275, 0x90000000, -0x1000, 0xF0FFFFE0),  # adrp x0, the page before
        ("aarch64", 277, 0x91000000, 0x123, 0x91048C00),  # add x0, x0, 0x123
        ("aarch64", 286, 0xF9400000, 0x10, 0xF9400800),  # ldr x0, [x0, 16]
        ("aarch64", 299, 0x3DC00000, 0x20, 0x3DC00800),  # ldr q0, [x0, 32]
        ("aarch64", 280, 0x54000000, -8, 0x54FFFFC0),  # b.eq .-8
        ("riscv64", 23, 0x00000517, 0x12345FFF, 0x12346517),  # auipc: the rest is -1
        ("riscv64", 24, 0x00050513, 0x12345FFF, 0xFFF50513),  # addi a0, a0, -1
        ("riscv64", 25, 0x00B52023, 0x804, 0x80B52223),  # sw a1, -2044(a0)
        ("riscv64", 17, 0x0000006F, -4, 0xFFDFF06F),  # j .-4
        ("riscv64", 16, 0x00000063, 8, 0x00000463),  # beq zero, zero, .+8
        ("x86_64", 2, 0, -1, 0xFFFFFFFF),
    ],
)
def test_fields(machine: str, kind: int, word: int, value: int, expected: int) -> None:
    assert hex(put(machine, kind, word, value)) == hex(expected)
    # What was there before plays no part, but for the bits around the field.
    assert hex(put(machine, kind, expected, value)) == hex(expected)


def test_a_call_of_risc_v_is_a_pair() -> None:
    pair = 0x000080E7_00000097  # auipc ra, 0; jalr ra, ra, 0
    assert put("riscv64", 19, pair, -4, 8) == 0xFFC080E7_00000097
    assert put("riscv64", 19, pair, 0x1800, 8) == 0x800080E7_00002097


@pytest.mark.parametrize(
    ("machine", "kind", "value"),
    [
        ("aarch64", 283, 1 << 27),
        ("aarch64", 283, 2),
        ("aarch64", 275, 1 << 32),
        ("aarch64", 286, 4),
        ("riscv64", 23, 1 << 31),
        ("riscv64", 17, 1 << 20),
        ("riscv64", 16, -(1 << 12) - 2),
        ("x86_64", 2, 1 << 31),
    ],
)
def test_out_of_reach(machine: str, kind: int, value: int) -> None:
    with pytest.raises(OverflowError):
        put(machine, kind, 0, value)
