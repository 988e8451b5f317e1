"""The fields of instructions: a table of names, offsets and widths for a configuration.

They are laid out one after another in two words of 64 bits, little endian; a field that would
cross into the second word begins there.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from operator import index
from typing import SupportsIndex

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.errors import VTAError

INSTRUCTION_BYTES = 16
_WORD = 64


class Opcode(IntEnum):
    """What an instruction does."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class AluOp(IntEnum):
    """What the ALU does to a lane."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


@dataclass(frozen=True, slots=True)
class Field:
    """Some bits of an instruction: `width` of them from bit `offset` on."""

    name: str
    offset: int
    width: int
    signed: bool = False

    def extract(self, word: int) -> int:
        """This field of an instruction given as a number."""
        value = word >> self.offset & (1 << self.width) - 1
        return (
            value - (1 << self.width)
            if self.signed and value >> self.width - 1
            else value
        )

    def insert(self, value: SupportsIndex) -> int:
        """The field's bits in place. Raises VTAError for a value that is not a number or does not
        fit."""
        try:
            number = index(value)
        except TypeError:
            raise VTAError(
                f"{self.name} is {value!r}, expected a whole number"
            ) from None
        if self.signed:
            low = -(1 << self.width - 1)
        else:
            low = 0
        if not low <= number < low + (1 << self.width):
            high = low + (1 << self.width) - 1
            raise VTAError(f"{self.name} is {number}, expected {low} to {high}")
        return (number & (1 << self.width) - 1) << self.offset


DEFAULT = VTAConfig()
OPCODE = Field("opcode", 0, 3)


def _widths(config: VTAConfig) -> dict[Opcode, dict[str, int]]:
    """Each instruction's fields in order, and their bits."""
    uop, acc = config.LOG_UOP_DEPTH, config.LOG_ACC_DEPTH
    inp, wgt = config.LOG_INP_DEPTH, config.LOG_WGT_DEPTH
    flags = {"pop_prev": 1, "pop_next": 1, "push_prev": 1, "push_next": 1}
    rectangle = {
        "sram_base": 16,
        "dram_base": 32,
        "y_size": 16,
        "x_size": 16,
        "x_stride": 16,
    }
    pads = {"y_pad_0": 4, "y_pad_1": 4, "x_pad_0": 4, "x_pad_1": 4}
    transfer = {**flags, "memory_type": 3, **rectangle, **pads}
    loops = {"uop_bgn": uop, "uop_end": uop + 1, "iter_out": 14, "iter_in": 14}
    nest = {
        **flags,
        "reset_reg": 1,
        **loops,
        "dst_factor_out": acc,
        "dst_factor_in": acc,
    }
    return {
        Opcode.LOAD: transfer,
        Opcode.STORE: transfer,
        Opcode.GEMM: {
            **nest,
            "src_factor_out": inp,
            "src_factor_in": inp,
            "wgt_factor_out": wgt,
            "wgt_factor_in": wgt,
        },
        Opcode.ALU: {
            **nest,
            "src_factor_out": acc,
            "src_factor_in": acc,
            "alu_opcode": 3,
            "use_imm": 1,
            "imm": 16,
        },
        Opcode.FINISH: flags,
    }


@cache
def layout(config: VTAConfig = DEFAULT) -> dict[Opcode, tuple[Field, ...]]:
    """The table of fields of every instruction, in order, the opcode (bits 0 to 2) left out.

    Raises VTAError if the configuration's indices need more than 128 bits.
    """
    table = {}
    for opcode, widths in _widths(config).items():
        found, end = [], OPCODE.width
        for name, width in widths.items():
            start = _WORD if end < _WORD < end + width else end
            found.append(
                Field(
                    name=name,
                    offset=start,
                    width=width,
                    signed=name == "imm",
                )
            )
            end = start + width
        if end > 8 * INSTRUCTION_BYTES:
            raise VTAError(f"{opcode.name} needs {end} bits, of 128", where="VTAConfig")
        table[opcode] = tuple(found)
    return table
