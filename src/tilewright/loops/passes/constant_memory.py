"""Constant memory: parameters that all threads of a block read at one element at a time.

A GPU gives the threads that read there together one element; others have to wait for theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tilewright.expr.nodes import Buffer, Load, Var
from tilewright.ir.node import postorder
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.launch import AXIS, LaunchProgram
from tilewright.loops.nodes import Kernel, Stmt
from tilewright.loops.passes.thread_registers import refusal
from tilewright.loops.scopes import CONSTANT
from tilewright.loops.walk import loops_of

_THREADS = {var for axis, var in AXIS.items() if axis.startswith("threadIdx")}


def check_constant_reads(body: Stmt) -> None:
    """Raise ScheduleError (TW-LAUNCH) for a load from constant memory at an index that depends on
    the thread, or on data."""
    for e in _loads(body):
        by = _decides(e, _THREADS) if e.buffer.scope == CONSTANT else ""
        if by:
            raise refusal(
                f"it is in constant memory, but {by} decides which element is read, and only one "
                "is read at a time there",
                f"buffer {e.buffer.name}",
                "leave it in global memory, or bind other loops to threads",
            )


def read_together(kernel: Kernel) -> tuple[Buffer, ...]:
    """The inputs of a kernel that the threads of its blocks read at one element at a time."""
    threads = {f.var for f in loops_of(kernel.body) if f.kind.startswith("threadIdx")}
    read = list(_loads(kernel.body))
    apart = {e.buffer for e in read if _decides(e, threads)}
    found = dict.fromkeys(e.buffer for e in read)
    return tuple(b for b in kernel.inputs if b in found and b not in apart)


def _loads(body: Stmt) -> Iterator[Load]:
    nodes: Any = postorder(body)
    return (e for e in nodes if isinstance(e, Load))


def _decides(e: Load, threads: Collection[Var]) -> str:
    """What lets threads read different elements: a number of theirs, data, or nothing."""
    used = {v for i in e.index for v in variables(i)}
    differs = [var.name for var in threads if var in used]
    if differs:
        return min(differs)
    return "data" if any(loads(i) for i in e.index) else ""


def constants_of(program: LaunchProgram) -> tuple[Buffer, ...]:
    """The parameters of a program that are in constant memory."""
    return tuple(b for b in program.params if b.scope == CONSTANT)
