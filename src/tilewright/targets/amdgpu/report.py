"""Reports a kernel's use of an AMD GPU: registers, spills, shared memory and waves.

LLVM writes the figures into the assembly; the waves follow from them and from the architecture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.loops.launch import LaunchProgram
from tilewright.targets.amdgpu.machine import AmdMachine

_KERNEL: Final = re.compile(r"^  - \.", re.MULTILINE)  # begins the entry of a kernel
# name of a figure: what LLVM calls it in the metadata of a kernel
_FIGURES: Final = {
    "vectors": "vgpr_count",
    "scalars": "sgpr_count",
    "shared": "group_segment_fixed_size",
    "private": "private_segment_fixed_size",
    "spills": "vgpr_spill_count",
}
_SIMDS: Final = 4  # of a unit


@dataclass(frozen=True, slots=True)
class AmdResources:
    """The resources of one kernel.

    vectors: registers of each thread; scalars: registers of a wave. shared: bytes of a block.
    private: stack bytes of a thread; spills: spilled registers.
    """

    vectors: int
    scalars: int
    shared: int
    private: int
    spills: int


def resources(assembly: str) -> dict[str, AmdResources]:
    """The resources of each kernel, from LLVM's assembly."""
    _, _, said = assembly.partition("amdhsa.kernels:")
    found = {}
    for part in _KERNEL.split(said)[1:]:
        name = re.search(r"^    \.name:\s+(\S+)", part, re.MULTILINE)
        values = {
            key: re.search(rf"\.{label}:\s+(\d+)", part)
            for key, label in _FIGURES.items()
        }
        assert name is not None and all(values.values())
        figures = {key: int(m[1]) for key, m in values.items() if m}
        found[name[1]] = AmdResources(**figures)
    return found


@dataclass(frozen=True, slots=True)
class AmdOccupancy:
    """The waves that a SIMD runs at once, their share of the maximum, and the limiting resource."""

    waves: int
    share: float
    limit: str


def occupancy(used: AmdResources, threads: int, machine: AmdMachine) -> AmdOccupancy:
    """The occupancy of a kernel with `threads` threads in a block; with 0 waves it cannot run."""
    of_block = -(-threads // machine.warp)
    each = -(-max(used.vectors, 1) // machine.granule) * machine.granule
    blocks = machine.shared // used.shared if used.shared else machine.waves * _SIMDS
    limits = {
        "waves": machine.waves,
        "registers": machine.file // each,
        "shared memory": -(-blocks * of_block // _SIMDS) if blocks else 0,
    }
    limit = min(limits, key=lambda name: limits[name])
    waves = limits[limit]
    return AmdOccupancy(waves, waves / machine.waves, limit)


def table(program: LaunchProgram, assembly: str, machine: AmdMachine) -> str:
    """A line for each kernel."""
    found = resources(assembly)
    return "\n".join(
        _line(launch.name, prod(launch.threads), found[launch.name], machine)
        for launch in program.launches
    )


def _line(name: str, threads: int, used: AmdResources, machine: AmdMachine) -> str:
    held = occupancy(used, threads, machine)
    figures: Mapping[str, int] = {
        "vector registers": used.vectors,
        "scalar registers": used.scalars,
        "spilled": used.spills,
        "B shared": used.shared,
        "B private": used.private,
        "threads": threads,
    }
    said = ", ".join(f"{n} {what}" for what, n in figures.items())
    waves = f"{held.waves} of {machine.waves} waves ({held.limit})"
    return f"{name}: {said}, {waves}"
