"""OpenCL devices as a target: kernels become OpenCL C, which the device's own compiler builds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from tilewright.base.errors import ArtifactError, CompileError
from tilewright.compute.nodes import Computation
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.base import Artifact, TargetSettings
from tilewright.targets.opencl.emit import emit
from tilewright.targets.opencl.platforms import chosen, kind_here, shown
from tilewright.targets.opencl.types import held
from tilewright.targets.permitted import Permissions
from tilewright.targets.simt.code import OPENCL_C, DeviceProgram
from tilewright.targets.simt.machine import SimtMachine, described
from tilewright.targets.simt.target import SimtTarget, check_clusters, check_constants


class OpenCL(SimtTarget):
    """A kind of OpenCL device. exact: no fused multiply-adds."""

    __slots__ = ("exact", "machine")
    name: str = "opencl"
    device: ClassVar[str] = "opencl"

    def __init__(self, machine: SimtMachine, exact: bool = False) -> None:
        self.machine = machine
        self.exact = exact

    @property
    def simt(self) -> SimtMachine:
        """The machine as described."""
        return self.machine

    @property
    def key(self) -> str:
        """The machine, and whether arithmetic is exact."""
        return f"opencl {self.machine} exact={self.exact}"

    @property
    def device_here(self) -> str:
        """The device that models run on."""
        try:
            return shown(chosen())
        except ArtifactError:
            return ""

    def refuses(self, computations: Sequence[Computation]) -> str:
        """A group with tensors of dtypes that OpenCL C has not."""
        tensors = [o.tensor for c in computations for o in c.outputs]
        for b in (*tensors, *(b for c in computations for b in c.inputs)):
            try:
                held(b.dtype)
            except CompileError as error:
                return f"{b.name}: {error}"
        return ""

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """OpenCL C with its launches.

        permitted is unused here: Oclgrind checks every access itself. Raises CompileError
        for constructs that OpenCL C lacks, ScheduleError for threads that do not form a grid.
        """
        code = self._code(kernel)
        return Artifact(symbol, code.to_bytes())

    def workspace(self, code: bytes) -> tuple[int, ...]:
        """Bytes of each buffer between the launches of a program."""
        return DeviceProgram.from_bytes(code, OPENCL_C).workspace

    def text(self, kernel: Kernel, symbol: str, kind: str) -> str:
        """The source, for `asm`."""
        if kind != "asm":
            return super().text(kernel, symbol, kind)
        return self._code(kernel).text

    def _launches(self, kernel: Kernel) -> LaunchProgram:
        of = self.machine
        program = to_launches(kernel, of.warp if of.subgroups else 1)
        check_clusters(program, f"OpenCL ({of.name})", False)
        check_constants(program, of)
        return program

    def _code(self, kernel: Kernel) -> DeviceProgram:
        return emit(self._launches(kernel), self.exact, self.machine.subgroups)


def make(settings: TargetSettings) -> OpenCL:
    """The target; the description is one of `simt.machine.described`, or of the device here."""
    given = settings.description
    machine = described({"like": kind_here()} if given is None else given)
    any_order = settings.fast or machine.any_order
    return OpenCL(replace(machine, any_order=any_order), settings.exact)
