"""SPIR-V as a target: generates a listing and reports its resources; cannot run it."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from tilewright.loops.launch import Launch, LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.block_memory import BlockMemory
from tilewright.targets.base import Artifact, TargetSettings
from tilewright.targets.permitted import Permissions
from tilewright.targets.simt.llvm_target import LlvmGpuTarget
from tilewright.targets.simt.machine import described
from tilewright.targets.spirv.emit import assembly, llvm_ir
from tilewright.targets.spirv.machine import SpirvMachine


class Spirv(LlvmGpuTarget[SpirvMachine]):
    """A kind of device."""

    __slots__ = ()
    name: str = "spirv"
    device: ClassVar[str] = "spirv"

    @property
    def key(self) -> str:
        """The machine, and how it rounds."""
        return f"spirv {self.simt} exact={self.exact}"

    @property
    def requirements(self) -> dict[str, Any]:
        """The architecture: no runtime here loads its code."""
        return {"arch": self.machine.arch}

    @property
    def warp(self) -> int:
        """Threads exchange values through shared memory, whatever the machine has."""
        return 1

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """The listing. Raises CompileError for code that SPIR-V or the machine cannot run."""
        return Artifact(symbol, self.assembly(self.launches(kernel)).encode())

    def llvm(self, program: LaunchProgram) -> str:
        """The program as LLVM's text."""
        return llvm_ir(program, self.machine, not self.exact)

    def assembly(self, program: LaunchProgram) -> str:
        """The program as a listing of SPIR-V."""
        return assembly(program, self.machine, not self.exact)

    def listing(self, program: LaunchProgram) -> str:
        """The resources of each kernel, then the listing."""
        heads = [f"; {_taken(launch)}" for launch in program.launches]
        return "\n".join([*heads, self.assembly(program)])


def _taken(launch: Launch) -> str:
    """Registers are allocated by the driver, which is not available here."""
    blocks = " x ".join(map(str, launch.grid))
    threads = prod(launch.threads)
    shared = BlockMemory.of(launch).nbytes
    return f"{launch.name}: {blocks} blocks of {threads} threads, {shared} B shared"


def make(settings: TargetSettings) -> Spirv:
    """The target; the description is one of `simt.machine.described`."""
    machine = SpirvMachine(described(settings.description))
    return Spirv(machine, settings.exact, settings.fast)
