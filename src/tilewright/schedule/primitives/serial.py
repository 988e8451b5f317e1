"""serial: the iterations of a loop run one after the other."""

from __future__ import annotations

from tilewright.loops.nodes import Kernel
from tilewright.schedule.loop_kind import with_kind
from tilewright.schedule.registry import primitive


@primitive
def serial(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Run the iterations of a loop one after the other; always legal.

    before: parallel i in n: B(i)
    after:  for i in n: B(i)
    """
    result = with_kind(kernel, loop, "serial", "serial", "")
    return result, None
