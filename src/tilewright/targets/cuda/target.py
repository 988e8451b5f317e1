"""NVIDIA's GPUs as a target: scheduled kernels become PTX, which needs no toolkit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilewright.compute.nodes import Computation
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.base import Artifact, Settings
from tilewright.targets.cuda.emit import llvm_ir, ptx
from tilewright.targets.cuda.machine import (
    STATIC,
    WARP,
    CudaMachine,
    machine,
)
from tilewright.targets.llvm.emit_launch import Shared, unheld
from tilewright.targets.permitted import Permissions
from tilewright.targets.simt.code import PTX, DeviceProgram, KernelLaunch
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.target import SimtTarget, check_block


class Cuda(SimtTarget):
    """One architecture. exact: a product and a sum are rounded each for itself."""

    __slots__ = ("exact", "machine")
    name: str = "cuda"
    device: ClassVar[str] = "cuda"
    own_mcpu: ClassVar[bool] = True

    def __init__(self, machine: CudaMachine, exact: bool = False) -> None:
        self.machine = machine
        self.exact = exact

    @property
    def simt(self) -> SimtMachine:
        """The architecture as schedules see it."""
        return self.machine.simt

    @property
    def key(self) -> str:
        """The architecture, and how it rounds."""
        return f"cuda {self.machine.name} exact={self.exact}"

    def refuses(self, computations: Sequence[Computation]) -> str:
        """Why a group is none for a GPU, by its dtypes."""
        return unheld(computations)

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """PTX with the grid of each launch.

        permitted is of no use here. Raises CompileError for what no GPU of the architecture can do.
        """
        program = self.launches(kernel)
        text = ptx(program, self.machine, not self.exact)
        return Artifact(symbol, code_of(program, text, self.machine).to_bytes())

    def launches(self, kernel: Kernel) -> LaunchProgram:
        """A scheduled kernel as launches that the architecture can run.

        Raises ScheduleError for loops that are none, CompileError for too large blocks.
        """
        program = to_launches(kernel, WARP)
        for launch in program.launches:
            check_block(launch, self.simt)
        return program

    def workspace(self, code: bytes) -> int:
        """What is between the launches of a program."""
        return sum(DeviceProgram.from_bytes(code, PTX).workspace)

    def text(self, kernel: Kernel, symbol: str, kind: str) -> str:
        """LLVM's text, or PTX as `asm`."""
        makers = {"llvm": llvm_ir, "asm": ptx}
        if kind not in makers:
            return super().text(kernel, symbol, kind)
        return makers[kind](self.launches(kernel), self.machine, not self.exact)


def code_of(program: LaunchProgram, text: str, of: CudaMachine) -> DeviceProgram:
    """What the device takes; text: the PTX of the program."""
    buffers = [*program.params, *program.workspace]
    calls = []
    for launch in program.launches:
        if 0 in launch.grid:
            continue  # without blocks it does nothing, and no driver takes it
        shared = Shared.of(launch, launch.name, STATIC)
        grid = tuple(e for e in launch.grid if isinstance(e, int))
        x, y, z = grid
        calls.append(
            KernelLaunch(
                name=launch.name,
                grid=(x, y, z),
                threads=launch.threads,
                shared=shared.nbytes,
                dynamic=shared.nbytes if shared.is_dynamic else 0,
                arguments=tuple(buffers.index(b) for b in launch.params),
            )
        )
    sizes = tuple(b.size * b.dtype.itemsize for b in program.workspace)
    params = len(program.params)
    return DeviceProgram(PTX, params, sizes, tuple(calls), text, of.name)


def make(settings: Settings) -> Cuda:
    """The target. Raises UnsupportedError for an unknown architecture."""
    return Cuda(machine(settings.mcpu), settings.exact)
