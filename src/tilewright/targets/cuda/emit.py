"""A Program as PTX: a kernel per launch, made by LLVM's back end for NVIDIA's GPUs.

LLVM infers the memory of each pointer (global, or shared by a block), and loads read-only data
through the read-only cache. Arithmetic follows IEEE: divisions and roots are correctly rounded,
subnormal numbers are kept, and products are fused with sums only with `contract`.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from tilewright.loops.launch import LaunchProgram
from tilewright.loops.passes.bulk_copies import boxes_of
from tilewright.loops.passes.warp_units import warp_units
from tilewright.targets.cuda import emit_bulk, emit_mma, emit_wgmma
from tilewright.targets.cuda.machine import STATIC, WARP, CudaMachine
from tilewright.targets.llvm import backend
from tilewright.targets.llvm.emit_copies import AsyncCopies
from tilewright.targets.llvm.emit_launch import Dialect, launches_text
from tilewright.targets.llvm.emit_stmt import Statements
from tilewright.targets.llvm.emit_text import LlvmValue
from tilewright.targets.simt.code import constant_symbol

TRIPLE: Final = "nvptx64-nvidia-cuda"
_LEVEL: Final = 2
# Short loops over a thread's arrays are unrolled, so that these stay in registers.
_PASSES: Final = (*backend.CHEAP, "loop_unroll", *backend.CHEAP)
_ASYNC: Final = "call void @llvm.nvvm.cp.async"
_NUMBERS: Final = {"blockIdx": "ctaid", "threadIdx": "tid"}


def _butterfly(w: Statements, v: LlvmValue, step: int, mask: LlvmValue) -> LlvmValue:
    inner = f"{mask.typed}, {v.typed}, i32 {step}, i32 {WARP - 1}"
    return w.ins(f"call i32 @llvm.nvvm.shfl.sync.bfly.i32({inner})", "i32")


def _copy(to: LlvmValue, at: LlvmValue, size: int, there: LlvmValue | None) -> str:
    """Copies of 16 bytes bypass the first-level cache: the data is read once."""
    cache = "cg" if size == 16 else "ca"
    zeros = "" if there is None else ".s"
    name = f"{_ASYNC}.{cache}.shared.global.{size}{zeros}"
    given = [v.typed for v in (to, at, there) if v is not None]
    return f"{name}({', '.join(given)})"


def _wait_groups(pending: int) -> str:
    return f"{_ASYNC}.wait.group(i32 {pending})"


def _attributes(threads: tuple[int, int, int]) -> str:
    extents = ",".join(map(str, threads))
    return f'nounwind "no-builtins" "nvvm.reqntid"="{extents}"'


DIALECT: Final = Dialect(
    convention="ptx_kernel",
    axes={
        f"{level}.{axis}": f"nvvm.read.ptx.sreg.{name}.{axis}()"
        for level, name in _NUMBERS.items()
        for axis in "xyz"
    },
    barrier=("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",),
    shuffle=_butterfly,
    warp=WARP,
    attributes=_attributes,
    symbol=constant_symbol,
    intrinsics={**emit_mma.CALLS, **emit_wgmma.CALLS},
    products=emit_wgmma.GROUPS,
    boxes=emit_bulk.BOXES,
    fence="call void @llvm.nvvm.fence.proxy.async.shared_cta()",
    copies=AsyncCopies(
        _copy, f"{_ASYNC}.commit.group()", f"{_ASYNC}.wait.all()", _wait_groups
    ),
)


def llvm_ir(program: LaunchProgram, machine: CudaMachine, contract: bool = True) -> str:
    """The program as LLVM assembly, before LLVM's passes; a kernel has its launch's name.

    Raises UnsupportedError for code without a native equivalent, CompileError for memory that a GPU
    lacks.
    """
    return launches_text(program, DIALECT, machine, contract, STATIC)


def ptx(program: LaunchProgram, machine: CudaMachine, contract: bool = True) -> str:
    """The program as PTX. Raises as `llvm_ir`, and CompileError if LLVM rejects it."""
    text = llvm_ir(program, machine, contract)
    return assembly(text, machine, program.name, _version(program))


def _version(program: LaunchProgram) -> str:
    """The version of PTX that a program needs, as a feature of LLVM; empty for the usual one."""
    units = (u.intrinsic for x in program.launches for u in warp_units(x.body))
    features = [f for u in units if u is not None for f in u.intrinsic.features]
    if any(boxes_of(x.body) or prod(x.cluster) > 1 for x in program.launches):
        features.append(emit_bulk.VERSION)
    found = max((f for f in features if f.startswith("ptx")), default="")
    return f"+{found}" if found else ""


def assembly(text: str, machine: CudaMachine, where: str, version: str = "") -> str:
    """LLVM assembly as PTX."""
    target: Any = backend.target_machine(TRIPLE, machine.name, version, _LEVEL)
    return str(target.emit_assembly(backend.optimized(text, target, where, _PASSES)))
