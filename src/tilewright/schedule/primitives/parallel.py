"""parallel: the iterations of a loop run on several threads."""

from __future__ import annotations

from tilewright.loops.nodes import Kernel
from tilewright.schedule.loop_kind import with_kind
from tilewright.schedule.registry import primitive


@primitive
def parallel(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Run the iterations of a loop on several threads.

    requires: no loop-carried dependence, steps of a reduction included;
        stores of overlapping tiles may conflict, since they store equal values, and so may stores
        of halos that iterations compute again, where their values are proved equal.
    before: for i in n: B(i)
    after:  parallel i in n: B(i)
    """
    hint = "take a loop of a cc dimension, or rfactor first"
    result = with_kind(kernel, loop, "parallel", "parallel", hint)
    return result, None
