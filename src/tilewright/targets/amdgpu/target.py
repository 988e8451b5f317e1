"""AMD's GPUs as a target: generates assembly and reports its resources; cannot run it."""

from __future__ import annotations

from typing import Any, ClassVar

from tilewright.loops.launch import LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.targets.amdgpu.emit import assembly, llvm_ir
from tilewright.targets.amdgpu.machine import AmdMachine, machine
from tilewright.targets.amdgpu.report import table
from tilewright.targets.base import Artifact, TargetSettings
from tilewright.targets.permitted import Permissions
from tilewright.targets.simt.llvm_target import LlvmGpuTarget


class AmdGpu(LlvmGpuTarget[AmdMachine]):
    """One architecture."""

    __slots__ = ()
    name: str = "amdgpu"
    device: ClassVar[str] = "amdgpu"
    own_mcpu: ClassVar[bool] = True

    @property
    def key(self) -> str:
        """The architecture, and how it rounds."""
        modes = f"exact={self.exact} any_order={self.simt.any_order}"
        return f"amdgpu {self.machine.name} {modes}"

    @property
    def requirements(self) -> dict[str, Any]:
        """The architecture: no runtime here loads its code."""
        return {"arch": self.machine.arch}

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """Assembly. Raises CompileError for code that no GPU of the architecture can run."""
        return Artifact(symbol, self.assembly(self.launches(kernel)).encode())

    def llvm(self, program: LaunchProgram) -> str:
        """The program as LLVM's text."""
        return llvm_ir(program, self.machine, not self.exact)

    def assembly(self, program: LaunchProgram) -> str:
        """The program as AMD's assembly."""
        return assembly(program, self.machine, not self.exact)

    def listing(self, program: LaunchProgram) -> str:
        """The resources of each kernel, then the assembly."""
        made = self.assembly(program)
        rows = table(program, made, self.machine).split("\n")
        return "\n".join([*(f"; {row}" for row in rows), made])


def make(settings: TargetSettings) -> AmdGpu:
    """The target. Raises UnsupportedError for an unknown architecture."""
    return AmdGpu(machine(settings.mcpu), settings.exact, settings.fast)
