"""The machine: its memories, and the effect of each instruction on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass

INP_BUFFER, ACC_BUFFER = "inp_buffer", "acc_buffer"
# Bytes of the memories on the chip.
CAPACITY: Mapping[str, int] = {INP_BUFFER: 32 << 10, ACC_BUFFER: 128 << 10}
EDGE = 8

Memory = NDArray[np.float32]


@dataclass(slots=True)
class Counts:
    """Counts of a run: instructions by name, multiply-adds, bytes moved on and off the chip."""

    instructions: dict[str, int] = field(default_factory=dict)
    macs: int = 0
    bytes_loaded: int = 0
    bytes_stored: int = 0

    def count(self, name: str) -> None:
        """One more instruction of that name."""
        self.instructions[name] = self.instructions.get(name, 0) + 1

    def __str__(self) -> str:
        lines = [f"{name:<18} {n:>10}" for name, n in self.instructions.items()]
        lines.append(f"{'multiply-adds':<18} {self.macs:>10}")
        lines.append(f"{'bytes loaded':<18} {self.bytes_loaded:>10}")
        lines.append(f"{'bytes stored':<18} {self.bytes_stored:>10}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class VdlaInstruction:
    """An instruction: the scopes that its addresses may be in (a row per combination), its effect.

    run(counts, arguments...): an address is the flat memory of a buffer and a position in it.
    """

    scopes: tuple[tuple[str, ...], ...]
    run: Callable[..., None]


def _tile(memory: Memory, at: int) -> Memory:
    return memory[at : at + EDGE * EDGE].reshape(EDGE, EDGE)


def _fill_zero(counts: Counts, acc: Memory, at: int) -> None:
    acc[at : at + EDGE * EDGE] = 0.0


def _gemm_add(
    counts: Counts, acc: Memory, at: int, a: Memory, a_at: int, b: Memory, b_at: int
) -> None:
    counts.macs += EDGE**3
    out = _tile(acc, at)
    out += _tile(a, a_at).T @ _tile(b, b_at)


def _gemm(
    counts: Counts, acc: Memory, at: int, a: Memory, a_at: int, b: Memory, b_at: int
) -> None:
    _fill_zero(counts, acc, at)
    _gemm_add(counts, acc, at, a, a_at, b, b_at)


def _dma(load: bool) -> Callable[..., None]:
    def copy(
        counts: Counts,
        to: Memory,
        to_at: int,
        source: Memory,
        at: int,
        to_stride: int,
        stride: int,
        rows: int,
        columns: int,
    ) -> None:
        for row in range(rows):
            here = to_at + row * to_stride
            there = at + row * stride
            to[here : here + columns] = source[there : there + columns]
        moved = rows * columns * to.itemsize
        if load:
            counts.bytes_loaded += moved
        else:
            counts.bytes_stored += moved

    return copy


# dma_copy2d is one instruction for its users; its addresses determine its direction.
_ON_CHIP = ((ACC_BUFFER,),)
_UNIT = ((ACC_BUFFER, INP_BUFFER, INP_BUFFER),)

INSTRUCTIONS: Mapping[str, tuple[VdlaInstruction, ...]] = {
    "fill_zero": (VdlaInstruction(_ON_CHIP, _fill_zero),),
    "gemm8x8": (VdlaInstruction(_UNIT, _gemm),),
    "fused_gemm8x8_add": (VdlaInstruction(_UNIT, _gemm_add),),
    "dma_copy2d": (
        VdlaInstruction(
            ((INP_BUFFER, "global"), (ACC_BUFFER, "global")), _dma(load=True)
        ),
        VdlaInstruction((("global", ACC_BUFFER),), _dma(load=False)),
    ),
}
