"""set_scope: a buffer in another memory scope."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.loops.scopes import Scope
from tilewright.schedule import tree
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import rebuffered


@primitive
def set_scope(kernel: Kernel, buffer: str, scope: Scope) -> tuple[Kernel, None]:
    """Move an allocated buffer to another memory scope.

    requires: the buffer is allocated in the kernel (a parameter belongs to the caller).
    before: alloc b in global: B
    after:  alloc b in stack: B
    """
    old, place = tree.find_buffer(kernel, buffer, "set_scope")
    if place is None:
        raise ScheduleError(
            "set_scope: the buffer is a parameter, whose memory is the caller's",
            where=f"buffer {buffer}",
            hint="stage it in a buffer of your own with cache_read or cache_write",
        )
    new = Buffer(old.name, old.extents, old.dtype, scope)
    return rebuffered(kernel, place, new, lambda index: index), None
