"""Memory planning: offsets in one arena from the buffers' lifetimes.

Greedy by size (largest first, lowest offset that is free for the whole lifetime), the strategy of
Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `size` bytes that lives from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Byte offset per lifetime, in the order given, and the arena's size in bytes."""

    offsets: tuple[int, ...]
    total: int


def plan(lifetimes: Sequence[Lifetime], alignment: int = 64) -> Plan:
    """Offsets such that no two buffers alive at one step overlap."""
    order = sorted(range(len(lifetimes)), key=lambda n: (-lifetimes[n].size, lifetimes[n].first))
    placed: list[tuple[int, int, Lifetime]] = []  # offset, end, lifetime; sorted by offset
    offsets = [0] * len(lifetimes)
    total = 0
    for n in order:
        life = lifetimes[n]
        size = -(-life.size // alignment) * alignment
        offset = 0
        for start, end, other in placed:
            if other.first > life.last or life.first > other.last:
                continue
            if start - offset >= size:
                break
            offset = max(offset, end)
        offsets[n] = offset
        placed.append((offset, offset + size, life))
        placed.sort(key=lambda p: p[0])
        total = max(total, offset + size)
    return Plan(tuple(offsets), total)
