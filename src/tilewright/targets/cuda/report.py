"""Reports NVIDIA's assembler's results: registers, spills, shared memory, and occupancy.

ptxas comes with CUDA's toolkit and as a wheel (nvidia-cuda-nvcc); neither compiling nor running a
model needs it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError, UnsupportedError
from tilewright.targets.cuda.machine import WARP, CudaMachine

_ENTRY: Final = re.compile(r"Compiling entry function '([^']+)'")
# name of a figure: how ptxas writes it
_FIGURES: Final = {
    "registers": re.compile(r"Used (\d+) registers"),
    "barriers": re.compile(r"used (\d+) barriers"),
    "shared": re.compile(r"(\d+) bytes smem"),
    "stack": re.compile(r"(\d+) bytes stack frame"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
}
_SERIALIZED: Final = re.compile(r"serialized .* in the function '([^']+)'")
_WARP_REGISTERS: Final = 256  # a warp's registers are given in such pieces
_SHARED: Final = 128  # bytes, as above
_WARPS: Final = 4  # a block has a multiple of so many warps' room


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a kernel: registers of a thread, and bytes of memory.

    stack: stack of a thread. spill_stores, spill_loads: spilled registers. shared: static shared
    memory of a block. is_serialized: whether each `wgmma` has to wait for the one before.
    """

    registers: int
    barriers: int = 0
    shared: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    is_serialized: bool = False


def ptxas() -> str | None:
    """The path of the assembler, from PATH or the wheel; None without one."""
    found = shutil.which("ptxas")
    if found is not None:
        return found
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(place).glob("*/bin/ptxas")):
            return str(path)
    return None


def assemble(text: str, machine: CudaMachine) -> tuple[bytes, dict[str, Resources]]:
    """PTX assembled for the machine (a cubin), and the resources of each kernel.

    Raises UnsupportedError without ptxas, CompileError if ptxas rejects the text.
    """
    tool = ptxas()
    if tool is None:
        raise UnsupportedError(
            "ptxas was not found",
            code="TW-PTXAS",
            hint="pip install nvidia-cuda-nvcc; compiling and running do not need it",
        )
    with tempfile.TemporaryDirectory() as place:
        source, code = Path(place, "kernels.ptx"), Path(place, "kernels.cubin")
        source.write_text(text)
        command = [tool, "-v", f"-arch={machine.name}", "-o", str(code), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode:
            wrong = [line for line in said.splitlines() if "error" in line] or [said]
            raise CompileError(
                f"ptxas rejects the code for {machine.name}: {wrong[0].strip()}",
                code="TW-PTXAS",
            )
        return code.read_bytes(), resources(said)


def resources(said: str) -> dict[str, Resources]:
    """The resources of each kernel, from the output of `ptxas -v`."""
    parts = _ENTRY.split(said)
    found = {}
    slow = _SERIALIZED.findall(said)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        held = {key: p.search(text) for key, p in _FIGURES.items()}
        counts = {k: int(m[1]) for k, m in held.items() if m}
        found[name] = Resources(**counts, is_serialized=name in slow)
    return found


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The blocks that a multiprocessor runs at once, the share of its threads, and the limiting
    resource."""

    blocks: int
    share: float
    limit: str


def occupancy(
    used: Resources, threads: int, machine: CudaMachine, dynamic: int = 0
) -> Occupancy:
    """The occupancy of a kernel with `threads` threads in a block. dynamic: further shared bytes of
    a block.

    With 0 blocks it cannot run.
    """
    warps = -(-threads // WARP)
    shared = used.shared + dynamic
    each = _up(shared, _SHARED) + machine.reserved if shared else machine.reserved
    limits: Mapping[str, int] = {
        "threads": machine.threads // (warps * WARP),
        "blocks": machine.blocks,
        "registers": _by_registers(used.registers, warps, machine),
        "shared memory": machine.shared // each if each else machine.blocks,
    }
    if shared > machine.block_shared:
        return Occupancy(0, 0.0, "shared memory")
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * warps * WARP / machine.threads, limit)


def _by_registers(registers: int, warps: int, machine: CudaMachine) -> int:
    if registers > machine.registers:
        return 0
    of_warp = _up(max(registers, 1) * WARP, _WARP_REGISTERS)
    room = machine.unit_registers // of_warp // _WARPS * _WARPS
    return room // warps


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def table(text: str, threads: Mapping[str, int], machine: CudaMachine) -> str:
    """A line for each kernel of the PTX; threads: of a block, by kernel. Raises as `assemble`."""
    lines = []
    for name, used in sorted(assemble(text, machine)[1].items()):
        held = occupancy(used, threads[name], machine)
        lines.append(
            f"{name}: {used.registers} registers, {used.spill_stores + used.spill_loads} B "
            f"spilled, {used.shared} B shared, {held.blocks} blocks "
            f"({held.share:.0%} of the threads, {held.limit})"
        )
    return "\n".join(lines)
