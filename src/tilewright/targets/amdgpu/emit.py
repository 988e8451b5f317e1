"""A Program for AMD's GPUs: LLVM's text of a kernel per launch, and its assembly."""

from __future__ import annotations

from math import prod
from typing import Any, Final

from tilewright.loops.launch import LaunchProgram
from tilewright.targets.amdgpu.machine import AmdMachine
from tilewright.targets.llvm import backend
from tilewright.targets.llvm.emit_launch import Dialect, launches_text
from tilewright.targets.llvm.emit_stmt import Statements
from tilewright.targets.llvm.emit_text import LlvmValue, integer
from tilewright.targets.llvm.spaces import in_spaces

TRIPLE: Final = "amdgcn-amd-amdhsa"
_LEVEL: Final = 2
# Short loops over a thread's arrays are unrolled, so that these stay in registers.
_PASSES: Final = (*backend.CHEAP, "loop_unroll", *backend.CHEAP)
_NUMBERS: Final = {"blockIdx": "workgroup.id", "threadIdx": "workitem.id"}
_WORD: Final = 4  # bytes: values of neighbors are found by these
_PRIVATE: Final = 5  # the address space of a thread's own memory


def _neighbor(w: Statements, v: LlvmValue, step: int, mask: LlvmValue) -> LlvmValue:
    """The value of a neighbor. All threads of the mask are active, so it is not needed."""
    low = w.ins("call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)", "i32")
    lane = w.ins(f"call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, {low.typed})", "i32")
    other = w.binary("xor", lane, integer(step, "i32"))
    place = w.binary("mul", other, integer(_WORD, "i32"))
    return w.ins(f"call i32 @llvm.amdgcn.ds.bpermute({place.typed}, {v.typed})", "i32")


def _attributes(threads: tuple[int, int, int]) -> str:
    count = prod(threads)
    return (
        f'nounwind "no-builtins" "uniform-work-group-size"="true" '
        f'"amdgpu-flat-work-group-size"="{count},{count}"'
    )


def dialect(machine: AmdMachine) -> Dialect:
    """How LLVM calls what an architecture has."""
    return Dialect(
        convention="amdgpu_kernel",
        axes={
            f"{level}.{axis}": f"amdgcn.{name}.{axis}()"
            for level, name in _NUMBERS.items()
            for axis in "xyz"
        },
        barrier=(
            'fence syncscope("workgroup") release',
            "call void @llvm.amdgcn.s.barrier()",
            'fence syncscope("workgroup") acquire',
        ),
        shuffle=_neighbor,
        warp=machine.warp,
        attributes=_attributes,
        local=_PRIVATE,
    )


def llvm_ir(program: LaunchProgram, machine: AmdMachine, contract: bool = True) -> str:
    """The program as LLVM assembly, before LLVM's passes; a kernel has its launch's name.

    Raises UnsupportedError for code without a native equivalent, CompileError for memory that a GPU
    lacks.
    """
    of = dialect(machine)
    return in_spaces(launches_text(program, of, machine, contract, machine.shared))


def assembly(program: LaunchProgram, machine: AmdMachine, contract: bool = True) -> str:
    """The program in assembly. Raises as `llvm_ir`, and CompileError if LLVM rejects it."""
    text = llvm_ir(program, machine, contract)
    target: Any = backend.target_machine(TRIPLE, machine.name, "", _LEVEL)
    module = backend.optimized(text, target, program.name, _PASSES)
    return str(target.emit_assembly(module))
