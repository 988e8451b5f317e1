"""double_buffer: a staged buffer filled for later iterations while this one uses it."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.loops.analysis.effects import writes
from tilewright.loops.nodes import Kernel
from tilewright.schedule import tree
from tilewright.schedule.primitives.pipeline import pipelined, sequence
from tilewright.schedule.registry import primitive


@primitive
def double_buffer(
    kernel: Kernel, buffer: str, loop: str | None = None, stages: int = 2
) -> tuple[Kernel, None]:
    """Fill a staged buffer for a later iteration before this one uses it, in two copies or more.

    args: a buffer allocated in the body of a loop; the loop (None: the innermost one around); the
        number of copies: the buffer is filled `stages` - 1 iterations ahead.
    requires: at least two copies; what pipeline requires, with the statements that write the
        buffer at lag 0 and all others at lag `stages` - 1.
    before: for i in n: alloc b: { b = load(i); use(i, b) }
    after:  alloc b[2]: { b[0] = load(0)
                          for i in n-1: { b[(i+1) % 2] = load(i+1); use(i, b[i % 2]) }
                          use(n-1, b[(n-1) % 2]) }
    """
    old, alloc = tree.find_buffer(kernel, buffer, "double_buffer")
    around = alloc.loops if alloc is not None else ()
    if not around or (loop is not None and around[-1].var.name != loop):
        inner = around[-1].var.name if around else None
        raise ScheduleError(
            "double_buffer: it is not allocated in the body of "
            + (f"loop {loop}" if loop is not None else "a loop"),
            where=f"buffer {buffer}",
            hint=f"double_buffer it by {inner}"
            if inner
            else "stage it in a loop with cache_read",
        )
    f, place = tree.find_loop(kernel, around[-1].var.name, "double_buffer")
    stmts = sequence(f.body).stmts
    if stages < 2:
        raise ScheduleError(
            f"double_buffer: {stages} copies hold no other iteration's elements",
            where=f"buffer {buffer}",
            hint="give it 2 stages or more",
        )
    lags = [(stages - 1) * (old not in writes(s)) for s in stmts]
    if set(lags) != {0, stages - 1}:
        raise ScheduleError(
            f"double_buffer: no statement of loop {f.var.name} fills it for the others",
            where=f"buffer {buffer}",
            hint="stage it directly in the loop, with cache_read or compute_at",
        )
    return pipelined(kernel, f, place, lags, "double_buffer"), None
