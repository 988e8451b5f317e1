"""unroll: the iterations of a loop are written one after another."""

from __future__ import annotations

from math import prod

from tilewright.loops.nodes import For, Kernel
from tilewright.loops.walk import walk
from tilewright.schedule import tree
from tilewright.schedule.legality import refuse
from tilewright.schedule.loop_kind import with_kind
from tilewright.schedule.registry import primitive

# Beyond this, code is larger than the caches that instructions and their translation have.
MAX_COPIES = 4096


@primitive
def unroll(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Emit the iterations of a loop one after another, in order.

    requires: a constant extent, and at most MAX_COPIES copies of the body, including unrolled loops
        around and inside.
    before: for i in n: B(i)
    after:  unroll i in n: B(i)
    """
    result = with_kind(kernel, loop, "unroll", "unroll", "leave the loop serial")
    _check_copies(result, loop)
    return result, None


def _check_copies(kernel: Kernel, loop: str) -> None:
    """Raise ScheduleError where unrolled loops write a statement out more than MAX_COPIES times."""
    f, place = tree.find_loop(kernel, loop, "unroll")
    for inner in walk(f):
        around = (*place.above, *inner.above, inner.stmt)
        loops = [x for x in around if isinstance(x, For) and x.kind == "unroll"]
        copies = prod(x.trips or 1 for x in loops)
        if copies > MAX_COPIES:
            sizes = " x ".join(f"{x.var.name} ({x.trips})" for x in loops)
            raise refuse(
                "unroll",
                loop,
                f"{sizes} are {copies:,} copies of what is inside, more than {MAX_COPIES:,}",
                "split the loop and unroll the inner one, or leave the loop serial",
            )
