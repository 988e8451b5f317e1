"""A Program as SPIR-V for the model of OpenCL: LLVM's text of a kernel per launch, a listing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Final

from tilewright.base.child import child_environment
from tilewright.base.errors import CompileError
from tilewright.loops.launch import LaunchProgram
from tilewright.targets.llvm import backend
from tilewright.targets.llvm.emit_launch import Dialect, launches_text
from tilewright.targets.llvm.emit_stmt import Statements
from tilewright.targets.llvm.emit_text import LlvmValue
from tilewright.targets.llvm.spaces import in_spaces
from tilewright.targets.spirv.machine import SpirvMachine

# OpenCL 1.2 and 2.0 take version 1.0 only, and nothing here needs a later one.
TRIPLE: Final = "spirv64v1.0-unknown-unknown"
_LEVEL: Final = 2
_PASSES: Final = (*backend.CHEAP, "loop_unroll", *backend.CHEAP)
_NUMBERS: Final = {
    "blockIdx": "spv.group.id.i32",
    "threadIdx": "spv.thread.id.in.group.i32",
}
_BARRIER: Final = "spir_func void @_Z7barrierj(i32{})"  # OpenCL C's barrier(flags)
_BOTH: Final = " 3"  # a block's memory, and the device's
_ALONE: Final = (
    "import sys; from tilewright.targets.spirv.emit import emitted; "
    "sys.stdout.buffer.write(emitted(sys.stdin.read(), *sys.argv[1:]))"
)


def _neighbor(w: Statements, v: LlvmValue, step: int, mask: LlvmValue) -> LlvmValue:
    raise CompileError("SPIR-V's core has no warps", code="TW-LAUNCH")


DIALECT: Final = Dialect(
    convention="spir_kernel",
    axes={
        f"{level}.{axis}": f"{name}(i32 {n})"
        for level, name in _NUMBERS.items()
        for n, axis in enumerate("xyz")
    },
    barrier=(f"call {_BARRIER.format(_BOTH)}",),
    shuffle=_neighbor,
    warp=1,
    constant=2,
    attributes=lambda threads: 'nounwind "no-builtins"',
)


def llvm_ir(
    program: LaunchProgram, machine: SpirvMachine, contract: bool = True
) -> str:
    """The program as LLVM assembly, before LLVM's passes; a kernel has its launch's name.

    Raises UnsupportedError for code without a native equivalent, CompileError for memory that a GPU
    lacks.
    """
    shared = machine.simt.shared
    text = in_spaces(launches_text(program, DIALECT, machine, contract, shared))
    sizes = []
    for n, launch in enumerate(program.launches, 1):
        text = text.replace(f" #{n} {{\n", f" #{n} !reqd_work_group_size !{n} {{\n", 1)
        sizes.append(f"!{n} = !{{{', '.join(f'i32 {e}' for e in launch.threads)}}}")
    return "\n".join([text, f"declare {_BARRIER.format('')}", *sizes, ""])


def assembly(
    program: LaunchProgram, machine: SpirvMachine, contract: bool = True
) -> str:
    """The program's listing. Raises as `llvm_ir`, and CompileError if LLVM rejects it."""
    return _emitted_alone(program, machine, contract, "assembly").decode()


def binary(
    program: LaunchProgram, machine: SpirvMachine, contract: bool = True
) -> bytes:
    """The program's module of SPIR-V. Raises as `assembly`."""
    return _emitted_alone(program, machine, contract, "object")


def _emitted_alone(
    program: LaunchProgram, machine: SpirvMachine, contract: bool, kind: str
) -> bytes:
    """What a process of its own emits: LLVM's back end keeps state of a process's modules, and
    after others one in eight defined a number twice."""
    text = llvm_ir(program, machine, contract)
    command = [sys.executable, "-c", _ALONE, program.name, kind]
    run = subprocess.run(
        command,
        input=text.encode(),
        capture_output=True,
        check=False,
        env=child_environment(),
    )
    if run.returncode:
        said = run.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"the process ended with code {run.returncode}"
        raise CompileError(f"LLVM emitted no SPIR-V: {why}", where=program.name)
    return run.stdout


def emitted(text: str, name: str, kind: str) -> bytes:
    """A kernel's LLVM assembly as SPIR-V, an "object" or its "assembly"; once in a process."""
    target: Any = backend.new_machine(TRIPLE, "", "", _LEVEL)
    module = backend.optimized(text, target, name, _PASSES)
    if kind == "object":
        return bytes(target.emit_object(module))
    return str(target.emit_assembly(module)).encode()
