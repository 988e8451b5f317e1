"""Descriptions of machines: the decisions made on users' machines, made and run here.

A schedule depends on vector width, instructions, caches and cores; each of these descriptions is
common, or is an extreme of existing machines. Their code runs natively if this processor has the
instructions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.targets.base import Target
from tilewright.targets.registry import target

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Description:
    """mcpu: the level of instructions. l1, l2, l3: bytes, of one core but for the last. cores:
    that kernels may use."""

    mcpu: str
    l1: int
    l2: int
    l3: int
    cores: int

    def target(self, exact: bool = False, level: int = 2) -> Target:
        """The CPU target for it; level: how much LLVM makes of its code, 0 to 3."""
        made: Any = target("cpu", self.mcpu, exact, self.cores)
        machine = replace(
            made.machine,
            l1=self.l1,
            l2=self.l2,
            l3=self.l3,
        )
        changed: Target = replace(made, machine=machine, level=level)
        return changed


MACHINES: dict[str, Description] = {
    "embedded": Description("x86-64-v2", 16 * KIB, 128 * KIB, 512 * KIB, 1),
    "nehalem": Description("x86-64-v2", 32 * KIB, 256 * KIB, 8 * MIB, 4),
    "haswell": Description("x86-64-v3", 32 * KIB, 256 * KIB, 8 * MIB, 4),
    "zen2": Description("x86-64-v3", 32 * KIB, 512 * KIB, 16 * MIB, 16),
    "alderlake": Description("x86-64-v3", 48 * KIB, 1280 * KIB, 30 * MIB, 8),
    "many-small-cores": Description("x86-64-v3", 32 * KIB, 256 * KIB, 16 * MIB, 64),
    "skylake-server": Description("x86-64-v4", 32 * KIB, 1 * MIB, 24 * MIB, 18),
    "cascadelake": Description("cascadelake", 32 * KIB, 1 * MIB, 35 * MIB, 2),
    "icelake-server": Description("cascadelake", 48 * KIB, 1280 * KIB, 48 * MIB, 32),
    "znver4": Description("znver4", 32 * KIB, 1 * MIB, 32 * MIB, 64),
    "large-caches": Description("x86-64-v4", 128 * KIB, 16 * MIB, 256 * MIB, 1),
    "sapphirerapids": Description("sapphirerapids", 48 * KIB, 2 * MIB, 105 * MIB, 56),
    "znver5": Description("znver5", 48 * KIB, 1 * MIB, 32 * MIB, 2),
}
