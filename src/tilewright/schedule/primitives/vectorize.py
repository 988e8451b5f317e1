"""vectorize: the iterations of a loop run together."""

from __future__ import annotations

from tilewright.loops.nodes import Kernel
from tilewright.schedule.loop_kind import with_kind
from tilewright.schedule.registry import primitive


@primitive
def vectorize(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Run the iterations of a loop together, statement by statement.

    requires: a constant extent; no loop-carried dependence, except as
        steps of one commutative reduction.
    before: for i in n: B(i)
    after:  vector i in n: B(i)
    """
    hint = "split the loop, or rfactor the reduction"
    result = with_kind(kernel, loop, "vector", "vectorize", hint)
    return result, None
