"""set_scope: a buffer in another memory scope."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.loops.scopes import CONSTANT, AnyScope, check_written
from tilewright.schedule import tree
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import rebuffered


@primitive
def set_scope(kernel: Kernel, buffer: str, scope: AnyScope) -> tuple[Kernel, None]:
    """Move an allocated buffer to another memory scope, or a parameter to constant memory.

    requires: of "constant": the buffer is a parameter of a constant size that the kernel does not
    write. Of any other scope: it is allocated in the kernel (a parameter belongs to the caller).
    What reads constant memory, threads of a block together, is checked when the kernel becomes
    launches; that the machine has as much, when these become code.
    before: alloc b in global: B
    after:  alloc b in stack: B
    """
    old, place = tree.find_buffer(kernel, buffer, "set_scope")
    if place is None:
        _check_parameter(kernel, old, scope)
    else:
        check_written(scope, f"buffer {buffer}")
    new = Buffer(old.name, old.extents, old.dtype, scope)
    if place is None:
        return on_buffers(kernel, {old: new}), None
    return rebuffered(kernel, place, new, lambda index: index), None


def _check_parameter(kernel: Kernel, buffer: Buffer, scope: str) -> None:
    """Raise ScheduleError for a parameter that cannot be in a scope."""
    why = ""
    hint = "leave it in global memory"
    if scope != CONSTANT:
        why = "the buffer is a parameter, whose memory is the caller's"
        hint = "stage it in a buffer of your own with cache_read or cache_write"
    elif buffer in kernel.outputs:
        why = "the kernel writes the buffer, and constant memory is only read"
    elif not buffer.static:
        why = "its size is known only at run time, and constant memory is small"
    if why:
        raise ScheduleError(
            f"set_scope: {why}", where=f"buffer {buffer.name}", hint=hint
        )
