"""The ALU over a whole nest, with the results of one step after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.fields import AluOp
from tilewright.targets.vta.isa import Alu
from tilewright.targets.vta.nest import Index, alike, steps
from tilewright.targets.vta.sram import Sram
from tilewright.targets.vta.uops import Indices

Lanes = NDArray[np.int32]


def shift_right(x: Lanes, y: Lanes) -> Lanes:
    """x >> y, arithmetic, or x << -y for a negative y; by 32 and more all bits are shifted out."""
    right = x >> np.clip(y, 0, 31)
    left = np.where(y > -32, x << np.clip(-y, 0, 31), 0)
    return np.where(y >= 0, right, left)


# Repeating these on one accumulator, operands may be put together first.
ASSOCIATIVE: Mapping[int, np.ufunc] = {
    AluOp.MIN: np.minimum,
    AluOp.MAX: np.maximum,
    AluOp.ADD: np.add,
    AluOp.MUL: np.multiply,
}
OPERATIONS: Mapping[int, Callable[[Any, Any], Any]] = {**ASSOCIATIVE, AluOp.SHR: shift_right}


def alu(i: Alu, used: tuple[Index, ...], sram: Sram) -> None:
    """Execute an ALU instruction; its indices have been checked."""
    acc = sram.acc
    for dst, *rest in steps(i, used):
        src = rest[0] if rest else None
        written = np.zeros(len(acc), bool)
        written[dst] = True
        once = np.count_nonzero(written) == len(dst)
        apart = src is None or not np.any(written[src] & (src != dst))
        if once and apart:
            operand = acc[src] if src is not None else np.int32(i.imm)
            acc[dst] = OPERATIONS[i.alu_opcode](acc[dst], operand)
        elif src is None and i.alu_opcode in ASSOCIATIVE:
            _repeat(ASSOCIATIVE[i.alu_opcode], acc, dst, np.int32(i.imm))
        elif src is not None and not np.any(written[src]) and i.alu_opcode in ASSOCIATIVE:
            _reduce(ASSOCIATIVE[i.alu_opcode], acc, dst, src)
        else:
            _in_order(i, acc, dst, src)


def _repeat(operation: np.ufunc, acc: Lanes, dst: Indices, imm: np.int32) -> None:
    for at in alike(dst):
        together = operation.reduce(np.full(at.shape[1], imm), dtype=np.int32)
        here = dst[at[:, 0]]
        acc[here] = operation(acc[here], together)


def _reduce(operation: np.ufunc, acc: Lanes, dst: Indices, src: Indices) -> None:
    """acc[dst] = operation(acc[dst], acc[src]); a dst may occur several times, none is a src."""
    for at in alike(dst):
        together = operation.reduce(acc.take(src[at.T], axis=0), axis=0, dtype=np.int32)
        here = dst[at[:, 0]]
        acc[here] = operation(acc[here], together)


def _in_order(i: Alu, acc: Lanes, dst: Indices, src: Indices | None) -> None:
    """Step by step: a step reads what one before it has written."""
    operation, imm = OPERATIONS[i.alu_opcode], np.full(acc.shape[1:], i.imm, np.int32)
    sources = src.tolist() if src is not None else None
    for step, d in enumerate(dst.tolist()):
        acc[d] = operation(acc[d], acc[sources[step]] if sources else imm)
