"""The steps of a plan with their code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.base.dataclass import dataclass
from tilewright.driver.compiled import CompiledGroup
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import (
    Control,
    DeviceCall,
    DeviceCopy,
    FusionGroup,
    HostFallback,
)
from tilewright.plan.normalize import KernelSignature


@dataclass(frozen=True, eq=False, slots=True)
class BuiltGroup:
    """A group with its interface and its object code."""

    stage: FusionGroup
    signature: KernelSignature
    code: CompiledGroup

    @property
    def over(self) -> tuple[Buffer, ...]:
        """The operands that the kernel may overwrite with its last result."""
        if not self.code.in_place or self.signature.offsets[-1]:
            return ()
        return tuple(self.signature.values[k] for k in self.code.in_place)


@dataclass(frozen=True, eq=False, slots=True)
class BuiltProgram:
    """A group or operator with its operands and its program, which a device runs.

    workspace: bytes of each buffer of the device that the program takes behind its operands.
    """

    stage: FusionGroup | DeviceCall
    operands: tuple[Buffer, ...]
    program: bytes
    workspace: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class BuiltControl:
    """A loop or branch with the steps of each of its plans."""

    stage: Control
    bodies: tuple[tuple[BuiltStep, ...], ...]


BuiltStep = BuiltGroup | BuiltProgram | BuiltControl | HostFallback | DeviceCopy


def built_inside(steps: Iterable[BuiltStep]) -> Iterator[BuiltGroup]:
    """All kernels in order, including those inside loops and branches."""
    for s in steps:
        if isinstance(s, BuiltGroup):
            yield s
        elif isinstance(s, BuiltControl):
            for body in s.bodies:
                yield from built_inside(body)


Native = BuiltGroup | BuiltControl  # a step that a native function runs
