"""A readable listing of a program, with what each instruction accesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.fields import DEFAULT
from tilewright.targets.vta.isa import Instruction, Load, Micro, decode_stream
from tilewright.targets.vta.nest import indices
from tilewright.targets.vta.program import illegal
from tilewright.targets.vta.sram import Sram, check_dram, load
from tilewright.targets.vta.stages import stage
from tilewright.targets.vta.text import show


def listing(
    stream: bytes,
    dram: bytearray | None = None,
    threads: Sequence[int | None] = (),
    config: VTAConfig = DEFAULT,
) -> str:
    """The text of a stream, which `assemble` reads, with a comment after each instruction.

    A comment names the stage, the virtual thread if `threads` has one for the instruction, and, if
    the DRAM image with the micro-ops is given, the ranges that GEMM and ALU touch.
    Raises VTAError for a stream that cannot be decoded or what the machine
    cannot execute.
    """
    program = decode_stream(stream, config)
    touched = (
        _touched(program, dram, config)
        if dram is not None
        else iter([""] * len(program))
    )
    whose: list[int | None] = [*threads, *[None] * (len(program) - len(threads))]
    lines = []
    for i, thread, ranges in zip(program, whose, touched):
        name = stage(i).value if thread is None else f"{stage(i).value}@TID{thread}"
        lines.append((show(i), f"// {name}{ranges}"))
    width = max((len(text) for text, _ in lines), default=0)
    return "".join(f"{text:<{width}}  {comment}\n" for text, comment in lines)


def _touched(
    program: Sequence[Instruction], dram: bytearray, config: VTAConfig
) -> Iterator[str]:
    """The ranges of each instruction's indices; its micro-ops are loaded as it goes."""
    sram = Sram.zeroed(config)
    image = np.frombuffer(dram, np.uint8)
    for number, i in enumerate(program):
        try:
            for message in illegal(i, config):
                raise VTAError(message)
            if isinstance(i, Load) and i.memory_type == MemoryId.UOP:
                check_dram(i, len(image), config)
                load(i, sram, image, config)
            yield _ranges(i, sram, config) if isinstance(i, Micro) and i.steps else ""
        except VTAError as e:
            raise e.at(f"instruction {number} ({show(i)})") from None


def _ranges(i: Micro, sram: Sram, config: VTAConfig) -> str:
    used = indices(i, sram, config)
    return "".join(f" {u.memory.upper()}[{u.first.min()}-{u.last(i)}]" for u in used)
