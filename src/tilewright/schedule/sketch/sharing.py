"""Whether a kernel is worth waking the other threads: whether it takes a core 10 us or more.

Its data counts besides its arithmetic. Data is in the caches of the cores that made it: one core
alone has to fetch most of it from the others, and they from it what it makes.
"""

from __future__ import annotations

from tilewright.schedule import Schedule
from tilewright.schedule.sketch.context import Context

# What takes a core about 10 us:
PRODUCTS = 1_000_000  # multiply-adds
POINTS = 65_536  # of one arithmetic operation, read and written
DATA = 1 << 18  # bytes that are read or written
CONSTANTS = 1 << 19  # bytes that nobody writes


def worth_sharing(s: Schedule, at: Context, work: float, unit: int = PRODUCTS) -> bool:
    """Whether `work`, of which a core does `unit` in 10 us, and the kernel's data take as long."""
    taken = work / unit
    for b in s.kernel.params:
        taken += b.size * b.dtype.itemsize / (CONSTANTS if b in at.constants else DATA)
    return taken >= 1
