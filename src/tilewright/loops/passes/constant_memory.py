"""Constant memory: parameters that all threads of a block read at one element at a time.

A GPU gives the threads that read there together one element; others have to wait for theirs.
"""

from __future__ import annotations

from typing import Any

from tilewright.expr.nodes import Buffer, Load
from tilewright.ir.node import postorder
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.launch import AXIS, LaunchProgram
from tilewright.loops.nodes import Stmt
from tilewright.loops.passes.thread_registers import refusal
from tilewright.loops.scopes import CONSTANT

_THREADS = {var for axis, var in AXIS.items() if axis.startswith("threadIdx")}


def check_constant_reads(body: Stmt) -> None:
    """Raise ScheduleError (TW-LAUNCH) for a load from constant memory at an index that depends on
    the thread, or on data."""
    nodes: Any = postorder(body)
    for e in nodes:
        if not isinstance(e, Load) or e.buffer.scope != CONSTANT:
            continue
        for i in e.index:
            differs = _THREADS & set(variables(i))
            if differs or loads(i):
                by = "data" if not differs else min(v.name for v in differs)
                raise refusal(
                    f"it is in constant memory, but {by} decides which element is read, and only "
                    "one is read at a time there",
                    f"buffer {e.buffer.name}",
                    "leave it in global memory, or bind other loops to threads",
                )


def constants_of(program: LaunchProgram) -> tuple[Buffer, ...]:
    """The parameters of a program that are in constant memory."""
    return tuple(b for b in program.params if b.scope == CONSTANT)
