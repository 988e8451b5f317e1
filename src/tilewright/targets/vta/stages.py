"""The three concurrent modules, and the token queues between neighbors.

    l2g ->           g2s ->
LOAD      COMPUTE        STORE
    <- g2l           <- s2g
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tilewright.targets.vta.config import MemoryId
from tilewright.targets.vta.isa import Instruction, Load, Store


class VtaModule(Enum):
    """A module by its name in listings; each executes its instructions in their order."""

    LOAD = "LD"
    COMPUTE = "EX"
    STORE = "ST"


# The flag of an instruction, by its stage -> the queue that it takes a token from.
POPS: Mapping[VtaModule, Mapping[str, str]] = {
    VtaModule.LOAD: {"pop_next": "g2l"},
    VtaModule.COMPUTE: {"pop_prev": "l2g", "pop_next": "s2g"},
    VtaModule.STORE: {"pop_prev": "g2s"},
}
# The same for the queue that it gives a token to.
PUSHES: Mapping[VtaModule, Mapping[str, str]] = {
    VtaModule.LOAD: {"push_next": "l2g"},
    VtaModule.COMPUTE: {"push_prev": "g2l", "push_next": "g2s"},
    VtaModule.STORE: {"push_prev": "s2g"},
}
QUEUES = ("l2g", "g2l", "g2s", "s2g")
# Queue -> the stage that pushes tokens to it.
GIVERS = {queue: stage for stage, flags in PUSHES.items() for queue in flags.values()}

_ORDER = tuple(VtaModule)


def stage(instruction: Instruction) -> VtaModule:
    """The module that executes an instruction."""
    if isinstance(instruction, Store):
        return VtaModule.STORE
    if isinstance(instruction, Load) and instruction.memory_type in (
        MemoryId.INP,
        MemoryId.WGT,
    ):
        return VtaModule.LOAD
    return VtaModule.COMPUTE


def neighbor(of: VtaModule, side: str) -> VtaModule | None:
    """The stage on one side, "prev" or "next", if there is one."""
    at = _ORDER.index(of) + (1 if side == "next" else -1)
    if 0 <= at < len(_ORDER):
        return _ORDER[at]
    return None


def pops(instruction: Instruction) -> tuple[str, ...]:
    """The queues that an instruction takes a token from before it starts."""
    return _queues(instruction, POPS)


def pushes(instruction: Instruction) -> tuple[str, ...]:
    """The queues that it pushes a token to when it has ended."""
    return _queues(instruction, PUSHES)


def _queues(
    instruction: Instruction, table: Mapping[VtaModule, Mapping[str, str]]
) -> tuple[str, ...]:
    flags = table[stage(instruction)]
    return tuple(queue for flag, queue in flags.items() if getattr(instruction, flag))
