"""The ALU over a whole nest, including the dependence of steps on earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.fields import AluOp
from tilewright.targets.vta.isa import Alu
from tilewright.targets.vta.nest import StepIndex, alike, steps
from tilewright.targets.vta.sram import Sram
from tilewright.targets.vta.uops import Indices

Lanes = NDArray[np.int32]


def shift_right(x: Lanes, y: Lanes) -> Lanes:
    """x >> y, arithmetic, or x << -y for a negative y; by 32 and more all bits are shifted out."""
    # From the upper half of 64 bits one shift to the right does both.
    places = np.minimum(np.maximum(y, -_BITS), _BITS - 1) + _BITS
    shifted: Lanes = (x.astype(np.int64) << _BITS >> places).astype(np.int32)
    return shifted


_BITS = 32
# Repeating these on one accumulator, operands may be put together first.
ASSOCIATIVE: Mapping[int, np.ufunc] = {
    AluOp.MIN: np.minimum,
    AluOp.MAX: np.maximum,
    AluOp.ADD: np.add,
    AluOp.MUL: np.multiply,
}
OPERATIONS: Mapping[int, Callable[[Any, Any], Any]] = {
    **ASSOCIATIVE,
    AluOp.SHR: shift_right,
}
# The constant that does at once what an immediate does in several steps.
TOGETHER: Mapping[int, Callable[[int, int], int]] = {
    AluOp.MIN: lambda imm, count: imm,
    AluOp.MAX: lambda imm, count: imm,
    AluOp.ADD: lambda imm, count: imm * count,
    AluOp.MUL: lambda imm, count: pow(imm, count, 1 << _BITS),
    AluOp.SHR: lambda imm, count: min(max(imm * count, -_BITS), _BITS - 1),
}


def alu(
    i: Alu, used: tuple[StepIndex, ...], sram: Sram, one_by_one: Callable[[int], None]
) -> None:
    """Execute an ALU instruction; its indices have been checked.

    one_by_one: called with the number of steps before they are executed one by one.
    """
    acc = sram.acc
    for dst, *rest in steps(i, used):
        if not rest:
            _repeat(i, acc, dst)
            continue
        src = rest[0]
        written = np.zeros(len(acc), bool)
        written[dst] = True
        once = np.count_nonzero(written) == len(dst)
        if once and not np.any(written[src] & (src != dst)):
            acc[dst] = OPERATIONS[i.alu_opcode](acc[dst], acc[src])
        elif i.alu_opcode in ASSOCIATIVE and not np.any(written[src]):
            _reduce(ASSOCIATIVE[i.alu_opcode], acc, dst, src)
        else:
            one_by_one(len(dst))
            _in_order(OPERATIONS[i.alu_opcode], acc, dst, src)


def _repeat(i: Alu, acc: Lanes, dst: Indices) -> None:
    """An operation with an immediate; a dst may occur several times."""
    for at in alike(dst):
        here = dst[at[:, 0]]
        constant = np.array(
            TOGETHER[i.alu_opcode](i.imm, at.shape[1]), np.int64
        ).astype(np.int32)
        acc[here] = OPERATIONS[i.alu_opcode](acc[here], constant)


def _reduce(operation: np.ufunc, acc: Lanes, dst: Indices, src: Indices) -> None:
    """acc[dst] = operation(acc[dst], acc[src]); a dst may occur several times, none is a src."""
    for at in alike(dst):
        together = operation.reduce(acc.take(src[at.T], axis=0), axis=0, dtype=np.int32)
        here = dst[at[:, 0]]
        acc[here] = operation(acc[here], together)


def _in_order(
    operation: Callable[[Any, Any], Any], acc: Lanes, dst: Indices, src: Indices
) -> None:
    """Step by step: a step reads what one before it has written."""
    for d, s in zip(dst.tolist(), src.tolist(), strict=True):
        acc[d] = operation(acc[d], acc[s])
