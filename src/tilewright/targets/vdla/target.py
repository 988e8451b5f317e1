"""The accelerator as a target of scheduled kernels; it takes no parts of models."""

from __future__ import annotations

from typing import Any, ClassVar

from tilewright.targets.base import Target, TargetSettings
from tilewright.targets.vdla.simulator import VdlaProgram


class Vdla(Target):
    """The machine, for one kernel at a time."""

    __slots__ = ()
    name: str = "vdla"
    device: ClassVar[str] = "vdla"
    programs: ClassVar[str] = "kernel"

    def load(self, program: Any) -> VdlaProgram:
        """The kernel as a program of the machine.

        Raises CompileError for code that the machine cannot run: statements outside its
        instructions (TW-VDLA-SCALAR), buffers that do not fit (TW-VDLA-MEMORY), memories and dtypes
        it lacks.
        """
        return VdlaProgram(program)


def make(settings: TargetSettings) -> Vdla:
    """The target."""
    return Vdla()
