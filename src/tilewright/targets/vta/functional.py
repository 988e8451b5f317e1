"""The functional simulator: the exact result of a program, without timing."""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import whole
from tilewright.targets.vta.alu import alu
from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.fields import DEFAULT
from tilewright.targets.vta.isa import (
    Alu,
    Gemm,
    Instruction,
    Load,
    Micro,
    Store,
    Transfer,
)
from tilewright.targets.vta.matrix_unit import gemm
from tilewright.targets.vta.nest import StepIndex, indices
from tilewright.targets.vta.order import order
from tilewright.targets.vta.program import InstructionStream
from tilewright.targets.vta.sram import Bytes, Sram, check_dram, load, store
from tilewright.targets.vta.strict import RunWatcher

# Steps of the units and elements moved: more than ResNet-50 takes as one program.
STEP_LIMIT = 1 << 24
ALONE = 16  # what a step counts that reads what the one before has written, and takes longer


@dataclass(slots=True)
class Counters:
    """What a run did, under the names of VTA's profiler.

    Bytes are those on the chip, without padding; a step of GEMM is a product of two tiles.
    """

    inp_load_nbytes: int = 0
    wgt_load_nbytes: int = 0
    acc_load_nbytes: int = 0
    uop_load_nbytes: int = 0
    out_store_nbytes: int = 0
    gemm_counter: int = 0
    alu_counter: int = 0
    instructions: int = 0


_LOADED = {
    MemoryId.INP: "inp_load_nbytes",
    MemoryId.WGT: "wgt_load_nbytes",
    MemoryId.ACC: "acc_load_nbytes",
    MemoryId.ACC_8BIT: "acc_load_nbytes",
    MemoryId.UOP: "uop_load_nbytes",
    MemoryId.OUT: "out_store_nbytes",
}


Result = TypeVar("Result", covariant=True)


class Simulator(Protocol[Result]):
    """What executes a stream: a FunctionalSimulator or a TimingSimulator."""

    def run(self, instructions: bytes, dram: bytearray) -> Result:
        """Execute a stream in place on an image of DRAM."""
        ...


class FunctionalSimulator:
    """Executes streams over a DRAM image.

    strict: also reject programs whose results depend on the order of the modules: reads of on-chip
    memory that was never written, and accesses to the same element that no token orders.
    step_limit: steps of GEMM and ALU and elements moved, altogether; a step of the ALU that must
    wait for the one before counts 16 times.

    Raises VTAError for an invalid configuration, and a limit that is not an integer.
    """

    def __init__(
        self,
        config: VTAConfig = DEFAULT,
        *,
        strict: bool = False,
        step_limit: int = STEP_LIMIT,
    ) -> None:
        limit = whole(step_limit, 0)
        if limit is None:
            raise VTAError(
                f"step_limit is {step_limit!r}, expected a whole number from 0 on",
                where="simulator",
            )
        if not isinstance(config, VTAConfig):
            raise VTAError(f"{config!r} is not a VTAConfig", where="simulator")
        self.config = config
        self.strict = strict
        self.step_limit = limit

    def run(self, instructions: bytes, dram: bytearray) -> Counters:
        """Execute a stream from zeroed memories and empty queues up to FINISH, in place on `dram`.

        Raises VTAError, with the instruction's index and text, for a stream that the machine cannot
        execute (an illegal field, an address out of range, work left after FINISH, no FINISH, more
        steps than the limit), and DeadlockError if tokens never arrive. Effects of earlier
        instructions remain.
        """
        program = InstructionStream.decode(instructions, self.config)
        return self.execute(program, dram)

    def execute(self, program: InstructionStream, dram: bytearray) -> Counters:
        """As `run`, of a program that is decoded."""
        image = _image(dram)
        run = _Run(self.config, image, self.step_limit)
        watcher = RunWatcher(program, self.config, len(image)) if self.strict else None
        for index in order(program):
            try:
                run.instruction(program.instructions[index], watcher, index)
            except VTAError as e:
                raise e.at(program.where(index)) from None
        return run.counters


def _image(dram: bytearray) -> Bytes:
    try:
        image = np.frombuffer(dram, np.uint8)
    except (TypeError, ValueError):
        image = None
    if image is None or not image.flags.writeable:
        if isinstance(dram, bytearray) and not dram:
            return np.zeros(0, np.uint8)
        raise VTAError(
            f"DRAM is a {type(dram).__name__}, expected a bytearray", where="dram"
        )
    return image


class _Run:
    """The state of one run."""

    def __init__(self, config: VTAConfig, dram: Bytes, limit: int) -> None:
        self.config = config
        self.dram = dram
        self.left = limit
        self.limit = limit
        self.sram = Sram.zeroed(config)
        self.counters = Counters()

    def instruction(
        self, i: Instruction, watcher: RunWatcher | None, index: int
    ) -> None:
        self.counters.instructions += 1
        self._spend(1)
        if watcher:
            watcher.begin(index)
        if isinstance(i, Micro):
            self._micro(i, watcher)
        elif isinstance(i, Transfer) and i.x_size:
            self._transfer(i, watcher)
        if watcher:
            watcher.end()

    def _spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise VTAError(
                f"the program takes more than {self.limit} steps",
                hint="give the simulator a larger step_limit if that is meant",
            )

    def _micro(self, i: Micro, watcher: RunWatcher | None) -> None:
        if not i.steps:
            return
        used: tuple[StepIndex, ...] = indices(i, self.sram, self.config)
        self._spend(i.steps)
        if watcher:
            watcher.micro(i, used, self.sram)
        if isinstance(i, Gemm):
            gemm(i, used, self.sram)
            self.counters.gemm_counter += 0 if i.reset_reg else i.steps
        elif isinstance(i, Alu):
            alu(i, used, self.sram, lambda count: self._spend(count * (ALONE - 1)))
            self.counters.alu_counter += i.steps

    def _transfer(self, i: Transfer, watcher: RunWatcher | None) -> None:
        check_dram(i, len(self.dram), self.config)
        self._spend(i.elements)
        if watcher:
            watcher.transfer(i)
        if isinstance(i, Load):
            load(i, self.sram, self.dram, self.config)
        elif isinstance(i, Store):
            store(i, self.sram, self.dram, self.config)
        memory = MemoryId(i.memory_type)
        name = _LOADED[memory]
        moved = i.y_size * i.x_size * self.config.spaces[memory].sram_bytes
        setattr(self.counters, name, getattr(self.counters, name) + moved)
