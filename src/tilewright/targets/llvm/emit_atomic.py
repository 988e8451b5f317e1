"""An atomic update as LLVM's `atomicrmw`, whose order with other accesses is not asked for."""

from __future__ import annotations

from typing import Final

from tilewright.base.errors import CompileError
from tilewright.loops.launch import AtomicUpdate
from tilewright.loops.passes.atomics import missing
from tilewright.targets.llvm.emit_stmt import Statements

_REAL: Final = {"add": "fadd"}
_UNSIGNED: Final = {"min": "umin", "max": "umax"}


def emit_atomic(x: Statements, s: AtomicUpdate) -> None:
    """The update at the current place. Raises CompileError for one that is no single step."""
    ((buffer, index),) = s.targets
    if why := missing(s.reducer, buffer):
        raise CompileError(why, code="TW-OPERATION", where=f"buffer {buffer.name}")
    if x.vector is not None:
        x.by_lane(s)
        return
    index, mask = x.target(buffer, index, x.guard_value())
    if 0 in buffer.extents:
        return
    value = x.value(s.values[0])

    def step() -> None:
        pointer = x.access(buffer, index).pointer
        x.line(f"atomicrmw {_operation(s)} {pointer.typed}, {value.typed} monotonic")

    if mask is None:
        step()
    else:
        x.when(mask, step)
    x.changed(s.buffers)


def _operation(s: AtomicUpdate) -> str:
    dtype, name = s.buffers[0].dtype, s.reducer.name
    if dtype.is_float:
        return _REAL[name]
    return name if dtype.is_signed else _UNSIGNED.get(name, name)
