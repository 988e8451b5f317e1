"""A decoded instruction stream, with every field checked that can be without running it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.fields import AluOp
from tilewright.targets.vta.isa import (
    Alu,
    Finish,
    Instruction,
    Load,
    Store,
    Transfer,
    decode_stream,
)
from tilewright.targets.vta.stages import POPS, PUSHES, VtaModule, pops, pushes, stage
from tilewright.targets.vta.text import show


@dataclass(frozen=True)
class InstructionStream:
    """The instructions of a stream, with the stage and the tokens of each."""

    instructions: Sequence[Instruction]

    @staticmethod
    def decode(data: bytes, config: VTAConfig) -> InstructionStream:
        """The program in a stream.

        Raises VTAError, with the instruction, for a stream that is cut off, an unknown opcode, an
        illegal field, more than the chip's memory, and if nothing ends the program.
        """
        program = InstructionStream(decode_stream(data, config))
        for index, instruction in enumerate(program.instructions):
            for message in illegal(instruction, config):
                raise VTAError(message, where=program.where(index))
        if not any(isinstance(i, Finish) for i in program.instructions):
            count = len(program.instructions)
            raise VTAError(
                "the stream ends without FINISH", where=f"after {count} instructions"
            )
        return program

    def where(self, index: int) -> str:
        """An instruction's place for messages: its index and text."""
        return f"instruction {index} ({show(self.instructions[index])})"

    @cached_property
    def stages(self) -> Sequence[VtaModule]:
        """The stage of every instruction."""
        return [stage(i) for i in self.instructions]

    @cached_property
    def pops(self) -> Sequence[tuple[str, ...]]:
        """The queues that every instruction takes a token from."""
        return [pops(i) for i in self.instructions]

    @cached_property
    def pushes(self) -> Sequence[tuple[str, ...]]:
        """The queues that every instruction pushes a token to."""
        return [pushes(i) for i in self.instructions]


def illegal(i: Instruction, config: VTAConfig) -> Iterator[str]:
    """What is wrong with the fields of one instruction."""
    at = stage(i)
    for verb, table in (("pop", POPS), ("push", PUSHES)):
        for flag in (f"{verb}_prev", f"{verb}_next"):
            if getattr(i, flag) and flag not in table[at]:
                yield f"{flag} is set, and {at.name} has no neighbor on that side"
    if isinstance(i, Transfer):
        yield from _illegal_transfer(i, config)
    if isinstance(i, Alu) and i.alu_opcode not in AluOp.__members__.values():
        yield f"unknown ALU operation {i.alu_opcode}, expected 0 to {max(AluOp)}"


def _illegal_transfer(i: Transfer, config: VTAConfig) -> Iterator[str]:
    if i.memory_type not in MemoryId.__members__.values():
        yield f"unknown memory {i.memory_type}, expected 0 to {max(MemoryId)}"
        return
    if isinstance(i, Load) and i.memory_type == MemoryId.OUT:
        yield "OUT can be stored only"
    if not i.x_size:
        return  # does nothing: the run time uses it to pass tokens on, with any memory
    if i.memory_type == MemoryId.ACC_8BIT and not config.loads_bytes:
        yield f"ACC_8BIT needs data of 8 bits, and this machine's has {config.operand_bits[0]}"
    if isinstance(i, Store) and i.memory_type != MemoryId.OUT:
        yield f"memory {i.memory_type} cannot be stored, expected {MemoryId.OUT:d} (OUT)"
        return
    if isinstance(i, Store) and (i.y_pad_0, i.y_pad_1, i.x_pad_0, i.x_pad_1) != (
        0,
        0,
        0,
        0,
    ):
        yield "a store has no padding"
    depth = config.spaces[MemoryId(i.memory_type)].depth
    if i.sram_base + i.elements > depth:
        last = i.sram_base + i.elements - 1
        name = MemoryId(i.memory_type).name
        yield f"element {last} of {name} is accessed, which has {depth}"
