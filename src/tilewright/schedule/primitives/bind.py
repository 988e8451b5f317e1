"""bind: a block or a thread of a GPU runs each iteration of a loop."""

from __future__ import annotations

from tilewright.loops.nodes import AXES, Kernel
from tilewright.schedule.legality import check_axes, refuse
from tilewright.schedule.loop_kind import with_kind
from tilewright.schedule.registry import primitive


@primitive
def bind(kernel: Kernel, loop: str, axis: str) -> tuple[Kernel, None]:
    """Give each iteration of a loop to a block or a thread of a GPU, or to a virtual thread.

    args: the loop; blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z or
        vthread.
    requires: a constant extent; no loop-carried dependence, except for threads as steps of one
        commutative reduction (each adds up a part, and a tree the parts: to_launches; for blocks
        rfactor it, and combine the parts in a loop that is not bound); stores of overlapping tiles
        may conflict; no loop around or inside is bound to the same axis of a GPU.
    The order of the interpreter stays; `vthread` interleaves virtual threads.
    before: for i in n: B(i)
    after:  blockIdx.x i in n: B(i)
    """
    if axis not in AXES:
        known = ", ".join(AXES)
        raise refuse("bind", loop, f"there is no axis {axis!r}", f"known: {known}")
    hint = "take a loop of a cc dimension, or rfactor first"
    result = with_kind(kernel, loop, axis, "bind", hint)
    check_axes(result, "bind")
    return result, None
