"""AMD's GPUs as a target: assembly and what it takes of a GPU. Nothing here loads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tilewright.compute.nodes import Computation
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.amdgpu.emit import assembly, llvm_ir
from tilewright.targets.amdgpu.machine import AmdMachine, machine
from tilewright.targets.amdgpu.report import table
from tilewright.targets.base import Artifact, Settings
from tilewright.targets.llvm.emit_launch import unheld
from tilewright.targets.permitted import Permissions
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.target import SimtTarget, check_block


class AmdGpu(SimtTarget):
    """One architecture. exact: a product and a sum are rounded each for itself."""

    __slots__ = ("exact", "machine")
    name: str = "amdgpu"
    device: ClassVar[str] = "amdgpu"
    own_mcpu: ClassVar[bool] = True

    def __init__(self, machine: AmdMachine, exact: bool = False) -> None:
        self.machine = machine
        self.exact = exact

    @property
    def simt(self) -> SimtMachine:
        """The architecture as schedules see it."""
        return self.machine.simt

    @property
    def key(self) -> str:
        """The architecture, and how it rounds."""
        return f"amdgpu {self.machine.name} exact={self.exact}"

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
        """Assembly. Raises CompileError for what no GPU of the architecture can do."""
        text = assembly(self.launches(kernel), self.machine, not self.exact)
        return Artifact(symbol, text.encode())

    def launches(self, kernel: Kernel) -> LaunchProgram:
        """A scheduled kernel as launches that the architecture can run.

        Raises ScheduleError for loops that are none, CompileError for too large blocks.
        """
        program = to_launches(kernel, self.machine.warp)
        for launch in program.launches:
            check_block(launch, self.simt)
        return program

    def text(self, kernel: Kernel, symbol: str, kind: str) -> str:
        """LLVM's text; or assembly as `asm`, behind what each kernel takes."""
        if kind not in ("llvm", "asm"):
            return super().text(kernel, symbol, kind)
        program = self.launches(kernel)
        if kind == "llvm":
            return llvm_ir(program, self.machine, not self.exact)
        made = assembly(program, self.machine, not self.exact)
        said = table(program, made, self.machine)
        return "\n".join([*(f"; {line}" for line in said.split("\n")), made])


def make(settings: Settings) -> AmdGpu:
    """The target. Raises UnsupportedError for an unknown architecture."""
    return AmdGpu(machine(settings.mcpu), settings.exact)
