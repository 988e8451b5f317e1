"""GPUs whose code LLVM writes: what their targets have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from tilewright.compute.nodes import Computation
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.llvm.emit_launch import unheld
from tilewright.targets.llvm.processor import Processor
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.target import (
    SimtTarget,
    check_block,
    check_clusters,
    check_constants,
)


class GpuProcessor(Processor, Protocol):
    """A machine that both LLVM and the schedules of launches know."""

    @property
    def simt(self) -> SimtMachine:
        """The machine as schedules see it."""
        ...


_Machine = TypeVar("_Machine", bound=GpuProcessor)


class LlvmGpuTarget(SimtTarget, Generic[_Machine]):
    """One machine. exact: products and sums are not contracted. fast: sums of floats in any
    order."""

    __slots__ = ("_simt", "exact", "machine")

    def __init__(
        self, machine: _Machine, exact: bool = False, fast: bool = False
    ) -> None:
        self.machine = machine
        self.exact = exact
        self._simt = replace(machine.simt, any_order=fast)

    @property
    def simt(self) -> SimtMachine:
        """The machine as schedules see it."""
        return self._simt

    @property
    def warp(self) -> int:
        """How many threads of a block exchange values without shared memory."""
        return self.simt.warp

    def refuses(self, computations: Sequence[Computation]) -> str:
        """Why a group cannot run on a GPU, by its dtypes."""
        return unheld(computations)

    def launches(self, kernel: Kernel) -> LaunchProgram:
        """A scheduled kernel as launches that the machine can run.

        Raises ScheduleError if its loops do not form a launch, CompileError for blocks that are too
        large.
        """
        of = self.simt
        program = to_launches(
            kernel, self.warp, of.async_copies, of.bulk_copies, of.own_room
        )
        for launch in program.launches:
            check_block(launch, self.simt)
        check_clusters(program, of.name, of.bulk_copies)
        check_constants(program, self.simt)
        return program

    def llvm(self, program: LaunchProgram) -> str:
        """The program as LLVM's text."""
        raise NotImplementedError

    def assembly(self, program: LaunchProgram) -> str:
        """The program as text of the machine. Raises CompileError for code that it cannot run."""
        raise NotImplementedError

    def listing(self, program: LaunchProgram) -> str:
        """The text shown as assembly."""
        return self.assembly(program)

    def text(self, kernel: Kernel, symbol: str, kind: str) -> str:
        """`llvm` or `asm`."""
        makers = {"llvm": self.llvm, "asm": self.listing}
        if kind not in makers:
            return super().text(kernel, symbol, kind)
        return makers[kind](self.launches(kernel))
