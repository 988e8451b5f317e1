"""The peaks of one core: fused multiply-adds per second, bytes per second by cache level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from benchmarks.native_loops import copy_rate, loops, multiply_rate

MOST = 1 << 29  # bytes between which memory is copied


@dataclass(frozen=True)
class Peaks:
    """One core's best: float32 GFLOP/s, and GB/s copied per capacity in bytes, smallest first.

    The last capacity is the memory's, without a bound.
    """

    gflops: float
    gbs: tuple[tuple[float, float], ...]

    def bandwidth(self, touched: int) -> float:
        """GB/s of the level that holds `touched` bytes."""
        return next(rate for capacity, rate in self.gbs if touched <= capacity)


def capacities() -> list[float]:
    """Bytes of the data caches that this core uses, smallest first, and of memory: no bound."""
    from tilewright.targets.cpu.machine import host

    here = host()
    return [here.l1, here.l2, here.l3, math.inf]


def measure() -> Peaks:
    """The peaks of the core that this runs on; takes about two seconds.

    Between buffers that together fill half of a cache, and more than any for memory.
    """
    p = loops()
    levels = capacities()
    rates = map(partial(copy_rate, p), (int(min(c, MOST)) // 2 for c in levels))
    return Peaks(multiply_rate(p), tuple(zip(levels, rates, strict=True)))
