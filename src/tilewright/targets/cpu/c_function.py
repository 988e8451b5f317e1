"""A kernel as functions of the C calling convention: what `driver/c_library` declares.

    int NAME(p0, ..., pn-1)                              on the caller's thread
    int NAME_parallel(run, threads, p0, ..., pn-1)       parallel loops are shared out by `run`

`run` is what `runtime/abi.py` calls `parallel`. Both return 0, the code of a failure there, or
NO_MEMORY. What a kernel keeps in memory next to the stack is allocated for the call.
"""

from __future__ import annotations

from typing import Final

from tilewright.expr.nodes import fixed
from tilewright.loops.nodes import Kernel
from tilewright.runtime.abi import (
    ALIGNMENT,
    CTX_PARALLEL,
    CTX_SLOTS,
    CTX_STATUS,
    CTX_THREADS,
    NO_MEMORY,
)
from tilewright.targets.cpu.compile import (
    LEVEL,
    check_for_files,
    compile_text,
    finished,
    written,
)
from tilewright.targets.cpu.frame_layout import plan_memory
from tilewright.targets.cpu.machine import CpuMachine

_LIBRARY: Final = frozenset({"aligned_alloc", "free"})


def compile_c_function(
    kernel: Kernel,
    machine: CpuMachine,
    name: str,
    *,
    contract: bool = True,
    level: int = LEVEL,
) -> bytes:
    """An object file that defines `name` and `name_parallel` and depends only on the C library.

    Raises UnsupportedError for a kernel without native code, CompileError if LLVM rejects it.
    """
    inner = f"{name}.kernel"
    kernel = finished(kernel, machine)
    text = written(kernel, machine, inner, contract)
    check_for_files(text, name)
    functions = _functions(kernel, name, inner)
    whole = f"{functions}\n{text}"
    return compile_text(whole, machine, name, allowed=_LIBRARY, level=level)


def _functions(kernel: Kernel, name: str, inner: str) -> str:
    """The two functions as LLVM assembly."""
    pointers = [f"ptr %p{n}" for n in range(len(kernel.params))]
    plan = plan_memory(kernel)
    shared = fixed(plan.shared, "the memory of a C function")
    thread = fixed(plan.thread, "the memory of a thread of a C function")
    takes_memory = bool(shared or thread)
    return _FUNCTIONS.format(
        name=name,
        inner=inner,
        parameters=", ".join(pointers),
        run_parameters=", ".join(["ptr %run", "i32 %threads", *pointers]),
        alone=", ".join(["ptr null", "i32 1", *pointers]),
        passed=", ".join(["ptr %ctx", *pointers, "ptr %ws"]),
        slots=CTX_SLOTS,
        parallel=CTX_PARALLEL,
        threads=CTX_THREADS,
        status=CTX_STATUS,
        take=_take(shared, thread) if takes_memory else _TAKE_NONE,
        give_back="  call void @free(ptr %ws)" if takes_memory else "",
    )


def _take(shared: int, thread: int) -> str:
    """Allocate the workspace; both sizes are multiples of the alignment."""
    return _TAKE.format(
        alignment=ALIGNMENT, shared=shared, thread=thread, failed=NO_MEMORY
    )


_TAKE_NONE: Final = "  %ws = getelementptr i8, ptr null, i64 0"
_TAKE: Final = """\
  %parts = mul i64 %shares, {thread}
  %size = add i64 %parts, {shared}
  %ws = call ptr @aligned_alloc(i64 {alignment}, i64 %size)
  %none = icmp eq ptr %ws, null
  br i1 %none, label %lacking, label %taken
lacking:
  ret i32 {failed}
taken:"""
_FUNCTIONS: Final = """\
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare i64 @llvm.smax.i64(i64, i64)
define i32 @{name}({parameters}) #0 {{
entry:
  %status = call i32 @{name}_parallel({alone})
  ret i32 %status
}}
define i32 @{name}_parallel({run_parameters}) #0 {{
entry:
  %ctx = alloca [{slots} x i64], align 64
  store [{slots} x i64] zeroinitializer, ptr %ctx, align 64
  %one = icmp eq ptr %run, null
  %given = sext i32 %threads to i64
  %wanted = call i64 @llvm.smax.i64(i64 %given, i64 1)
  %shares = select i1 %one, i64 1, i64 %wanted
  %parallel.at = getelementptr i64, ptr %ctx, i64 {parallel}
  store ptr %run, ptr %parallel.at, align 8
  %threads.at = getelementptr i64, ptr %ctx, i64 {threads}
  store i64 %shares, ptr %threads.at, align 8
{take}
  call void @{inner}({passed})
{give_back}
  %status.at = getelementptr i64, ptr %ctx, i64 {status}
  %numbered = load i64, ptr %status.at, align 8
  %code = and i64 %numbered, 255
  %status = trunc i64 %code to i32
  ret i32 %status
}}"""
