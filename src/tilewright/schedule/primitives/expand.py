"""expand: an element of a buffer for each iteration."""

from __future__ import annotations

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.access import Index, environment
from tilewright.loops.analysis.overlap import without_promise
from tilewright.loops.nodes import Alloc, Kernel
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_one_place
from tilewright.schedule.registry import primitive


@primitive
def expand(kernel: Kernel, buffer: str, loop: str) -> tuple[Kernel, None]:
    """Give each iteration of a loop its own element of a buffer allocated inside it.

    requires: the loop is the innermost one around the buffer's allocation and has a constant
        extent; the loop allocates the buffer in no other place.
    Formally, iterations share no element, as before, and one iteration has as many of the buffer as
    before: a second place, maybe inside a parallel loop, would be another one.
    It gains a leading dimension for the loop and is allocated around it, so that the loop's body
    can be parted (decompose_reduction, fission). Repeat for the loops further out. Its other
    indices no longer promise anything of overlapping tiles that the loop is, or is in.
    before: for i in n: alloc c[1]: B(c[0])
    after:  alloc c[n, 1]: for i in n: B(c[i, 0])
    """
    f, place = tree.find_loop(kernel, loop, "expand")
    old, alloc = tree.find_buffer(kernel, buffer, "expand")
    innermost = alloc.loops[-1] if alloc is not None and alloc.loops else None
    if alloc is None or innermost is not f:
        hint = "it lives in no loop"
        if innermost is not None:
            hint = f"expand it by {innermost.var.name} first"
        raise ScheduleError(
            f"expand: {loop} is not the innermost loop around the buffer's allocation",
            where=f"buffer {buffer}",
            hint=hint,
        )
    check_one_place(f, old, "expand")
    shape = (tree.trips(f, "expand"), *old.extents)
    new = Buffer(old.name, shape, old.dtype, old.scope)
    env = environment(kernel.body)
    tiles = {f.var, *(g.var for g in place.loops)}

    def moved(index: Index) -> tuple[Buffer, Index]:
        return new, (f.var, *without_promise(index, tiles))

    body = edit.without_alloc(f, old)
    body = edit.rewrite(body, env, moves={old: moved})
    return edit.put(kernel, place, Alloc(new, body)), None
