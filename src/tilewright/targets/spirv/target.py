"""SPIR-V as a target: a listing and what it takes of a device. Nothing here loads it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from tilewright.compute.nodes import Computation
from tilewright.loops.launch import Launch, LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.base import Artifact, Settings
from tilewright.targets.llvm.emit_launch import unheld
from tilewright.targets.permitted import Permissions
from tilewright.targets.simt.machine import SimtMachine, described
from tilewright.targets.simt.target import SimtTarget, check_block, shared_of
from tilewright.targets.spirv.emit import assembly, llvm_ir
from tilewright.targets.spirv.machine import SpirvMachine


class Spirv(SimtTarget):
    """A kind of device. exact: a product and a sum are rounded each for itself."""

    __slots__ = ("exact", "machine")
    name: str = "spirv"
    device: ClassVar[str] = "spirv"

    def __init__(self, machine: SpirvMachine, exact: bool = False) -> None:
        self.machine = machine
        self.exact = exact

    @property
    def simt(self) -> SimtMachine:
        """The machine as it is described."""
        return self.machine.simt

    @property
    def key(self) -> str:
        """The machine, and how it rounds."""
        return f"spirv {self.simt} exact={self.exact}"

    @property
    def requirements(self) -> dict[str, Any]:
        """The architecture: no runtime here loads its code."""
        return {"arch": self.machine.arch}

    def refuses(self, computations: Sequence[Computation]) -> str:
        """Why a group is none for a GPU, by its dtypes."""
        return unheld(computations)

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """The listing. Raises CompileError for what SPIR-V or the machine has not."""
        text = assembly(self.launches(kernel), self.machine, not self.exact)
        return Artifact(symbol, text.encode())

    def launches(self, kernel: Kernel) -> LaunchProgram:
        """A scheduled kernel as launches that the machine can run.

        Raises ScheduleError for loops that are none, CompileError for too large blocks.
        """
        program = to_launches(kernel)
        for launch in program.launches:
            check_block(launch, self.simt)
        return program

    def text(self, kernel: Kernel, symbol: str, kind: str) -> str:
        """LLVM's text; or the listing as `asm`, behind what each kernel takes."""
        if kind not in ("llvm", "asm"):
            return super().text(kernel, symbol, kind)
        program = self.launches(kernel)
        if kind == "llvm":
            return llvm_ir(program, self.machine, not self.exact)
        made = assembly(program, self.machine, not self.exact)
        return "\n".join([*(f"; {_taken(x)}" for x in program.launches), made])


def _taken(launch: Launch) -> str:
    """Registers are given out by the driver, which nobody can ask here."""
    blocks = " x ".join(map(str, launch.grid))
    threads = prod(launch.threads)
    return f"{launch.name}: {blocks} blocks of {threads} threads, {shared_of(launch)} B shared"


def make(settings: Settings) -> Spirv:
    """The target; the description is one of `simt.machine.described`."""
    return Spirv(SpirvMachine(described(settings.description)), settings.exact)
