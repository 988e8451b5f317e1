"""The instructions, their encoder and decoder.

    instruction = LOAD rectangle | STORE rectangle | GEMM nest | ALU nest | FINISH

fields.py has the bits of each field, uops.py the micro-ops that a nest executes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.fields import (
    DEFAULT,
    INSTRUCTION_BYTES,
    OPCODE,
    Opcode,
    layout,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An instruction with its dependence flags; the subclasses are the opcodes.

    A flag pops a token from, or pushes one to, the neighbor in load - compute - store.
    """

    opcode: ClassVar[Opcode]

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False

    @staticmethod
    def decode(data: bytes, config: VTAConfig = DEFAULT) -> Instruction:
        """The instruction in 16 bytes; bits that no field has are not looked at.

        Raises VTAError for another length and for an unknown opcode.
        """
        data = _bytes(data)
        if len(data) != INSTRUCTION_BYTES:
            raise VTAError(
                f"an instruction has {INSTRUCTION_BYTES} bytes, found {len(data)}"
            )
        word = int.from_bytes(data, "little")
        opcode = OPCODE.extract(word)
        if opcode not in _CLASSES:
            raise VTAError(f"unknown opcode {opcode} in {data.hex()}")
        values: dict[str, Any] = {
            f.name: f.extract(word) for f in layout(config)[Opcode(opcode)]
        }
        for flag in FLAGS & values.keys():
            values[flag] = bool(values[flag])
        return _CLASSES[Opcode(opcode)](**values)

    def encode(self, config: VTAConfig = DEFAULT) -> bytes:
        """The 16 bytes of the instruction. Raises VTAError for a value that fits no field."""
        word = OPCODE.insert(self.opcode)
        for f in layout(config)[self.opcode]:
            word |= f.insert(getattr(self, f.name))
        return word.to_bytes(INSTRUCTION_BYTES, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Instruction):
    """A rectangle between DRAM and the chip: y_size rows of x_size elements, x_stride apart."""

    memory_type: int
    sram_base: int = 0
    dram_base: int = 0
    y_size: int = 0
    x_size: int = 0
    x_stride: int = 0
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0

    @property
    def row(self) -> int:
        """Elements of a row on the chip."""
        return self.x_pad_0 + self.x_size + self.x_pad_1

    @property
    def elements(self) -> int:
        """Elements on the chip, padding included; none if x_size is 0."""
        return (
            self.row * (self.y_pad_0 + self.y_size + self.y_pad_1) if self.x_size else 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Transfer):
    """From DRAM to the chip, with zeros around."""

    opcode: ClassVar[Opcode] = Opcode.LOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Store(Transfer):
    """The low bytes of accumulator tiles to DRAM."""

    opcode: ClassVar[Opcode] = Opcode.STORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro(Instruction):
    """A nest: iter_out times, iter_in times, the micro-ops from uop_bgn up to uop_end.

    An index is the micro-op's, plus the two loop counters times their factors.
    """

    reset_reg: bool = False
    uop_bgn: int = 0
    uop_end: int = 0
    iter_out: int = 0
    iter_in: int = 0
    dst_factor_out: int = 0
    dst_factor_in: int = 0
    src_factor_out: int = 0
    src_factor_in: int = 0

    @property
    def uops(self) -> int:
        """How many micro-ops there are in the innermost loop."""
        return max(0, self.uop_end - self.uop_bgn)

    @property
    def steps(self) -> int:
        """How many times the unit works."""
        return self.iter_out * self.iter_in * self.uops


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Micro):
    """acc[dst] += inp[src] . wgt[wgt]^T in every step, or acc[dst] = 0 if reset_reg."""

    opcode: ClassVar[Opcode] = Opcode.GEMM

    wgt_factor_out: int = 0
    wgt_factor_in: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alu(Micro):
    """acc[dst] = op(acc[dst], acc[src] or imm) in every step, lane by lane."""

    opcode: ClassVar[Opcode] = Opcode.ALU

    alu_opcode: int = 0
    use_imm: bool = False
    imm: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Instruction):
    """The end of the program."""

    opcode: ClassVar[Opcode] = Opcode.FINISH


FLAGS = frozenset(
    ("pop_prev", "pop_next", "push_prev", "push_next", "reset_reg", "use_imm")
)
_CLASSES: Mapping[Opcode, type[Instruction]] = {
    c.opcode: c for c in (Load, Store, Gemm, Finish, Alu)
}


def decode_stream(data: bytes, config: VTAConfig = DEFAULT) -> list[Instruction]:
    """All instructions of a stream. Raises VTAError, with the index, for one that is none."""
    data = _bytes(data)
    whole, rest = divmod(len(data), INSTRUCTION_BYTES)
    if rest:
        raise VTAError(
            f"the stream ends within an instruction: {rest} of {INSTRUCTION_BYTES} bytes",
            where=f"instruction {whole}",
        )
    found = []
    for index in range(whole):
        at = index * INSTRUCTION_BYTES
        try:
            found.append(Instruction.decode(data[at : at + INSTRUCTION_BYTES], config))
        except VTAError as e:
            raise e.at(f"instruction {index}") from None
    return found


def encode_stream(program: list[Instruction], config: VTAConfig = DEFAULT) -> bytes:
    """The stream of instructions. Raises VTAError for a value that fits no field."""
    return b"".join(i.encode(config) for i in program)


def _bytes(data: Any) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise VTAError(f"expected bytes, found {type(data).__name__}")
    return bytes(data)
