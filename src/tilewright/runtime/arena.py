"""Offsets in one arena from lifetimes, and the lower bound of the arena's size.

Greedy: each buffer is placed in the smallest gap, or the lowest one, that is free for its whole
lifetime. No single order is best for every model, so several are tried until one reaches the bound.
The orders by size and by breadth are those of Pisarchyk and Lee, "Efficient Memory Management for
Deep Neural Net Inference" (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from tilewright.runtime.abi import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `size` bytes that lives from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Byte offset per lifetime, in the order given, and the arena's size in bytes."""

    offsets: tuple[int, ...]
    total: int


def live_bytes(
    lives: Iterable[Lifetime],
    alignment: int = ALIGNMENT,
) -> list[int]:
    """The bytes alive at each step, up to the last one at which anything lives."""
    held = list(lives)
    change = [0] * (max((v.last for v in held), default=-1) + 2)
    for v in held:
        size = _aligned(v.size, alignment)
        change[v.first] += size
        change[v.last + 1] -= size
    found, now = [], 0
    for c in change[:-1]:
        now += c
        found.append(now)
    return found


def assign_offsets(
    lives: Sequence[Lifetime],
    alignment: int = ALIGNMENT,
) -> Arena:
    """Offsets such that no two buffers alive at one step overlap.

    The total is at least the peak of `live_bytes`, which not every set of lifetimes can reach.
    """
    profile = live_bytes(lives, alignment)
    bound = max(profile, default=0)
    best = Arena((), 0)
    for order, fit in product(_ORDERS, _FITS):
        keys = order(lives, profile)
        found = _placed(lives, keys, fit, alignment)
        if not best.offsets or found.total < best.total:
            best = found
        if best.total <= bound:
            break
    return best


# A free gap as (offset, bytes that stay free in it): the least is taken.
Fit = Callable[[int, float], tuple[float, float]]
# What each lifetime is sorted by.
Order = Callable[[Sequence[Lifetime], Sequence[int]], Sequence[tuple[int, ...]]]


def _by_size(
    lives: Sequence[Lifetime],
    _: Sequence[int],
) -> list[tuple[int, ...]]:
    return [(-v.size, v.first) for v in lives]


def _by_area(
    lives: Sequence[Lifetime],
    _: Sequence[int],
) -> list[tuple[int, ...]]:
    """Bytes times steps: buffers that conflict with the most others are placed first."""
    return [(-v.size * (v.last - v.first + 1), v.first) for v in lives]


def _by_breadth(
    lives: Sequence[Lifetime], profile: Sequence[int]
) -> list[tuple[int, ...]]:
    """Buffers that are live at the fullest step are placed first."""
    return [(-max(profile[v.first : v.last + 1]), -v.size, v.first) for v in lives]


def _by_length(
    lives: Sequence[Lifetime],
    _: Sequence[int],
) -> list[tuple[int, ...]]:
    return [(v.first - v.last, -v.size, v.first) for v in lives]


def _by_start(
    lives: Sequence[Lifetime],
    _: Sequence[int],
) -> list[tuple[int, ...]]:
    return [(v.first, -v.size) for v in lives]


def _lowest(
    offset: int,
    left: float,
) -> tuple[float, float]:
    return offset, left


def _tightest(
    offset: int,
    left: float,
) -> tuple[float, float]:
    return left, offset


_ORDERS: Final[tuple[Order, ...]] = (
    _by_size,
    _by_breadth,
    _by_area,
    _by_length,
    _by_start,
)
_FITS: Final[tuple[Fit, ...]] = (_lowest, _tightest)


def _placed(
    lives: Sequence[Lifetime], keys: Sequence[tuple[int, ...]], fit: Fit, alignment: int
) -> Arena:
    # Each its offset, end and lifetime; sorted by offset.
    placed: list[tuple[int, int, Lifetime]] = []
    offsets = [0] * len(lives)
    total = 0
    for n in sorted(range(len(lives)), key=keys.__getitem__):
        life = lives[n]
        size = _aligned(life.size, alignment)
        taken = [
            (start, end)
            for start, end, other in placed
            if other.first <= life.last and life.first <= other.last
        ]
        offset = _gap(taken, size, fit)
        offsets[n] = offset
        placed.append((offset, offset + size, life))
        placed.sort(key=lambda p: p[0])
        total = max(total, offset + size)
    return Arena(tuple(offsets), total)


def _gap(
    taken: Sequence[tuple[int, int]],
    size: int,
    fit: Fit,
) -> int:
    """The offset of a gap of `size` bytes between the taken ranges, which are sorted; else the
    end."""
    free: list[tuple[int, float]] = []
    end = 0
    for start, stop in taken:
        if start - end >= size:
            free.append((end, start - end - size))
        end = max(end, stop)
    free.append((end, float("inf")))
    return min(free, key=lambda gap: fit(*gap))[0]


def _aligned(
    size: int,
    alignment: int,
) -> int:
    return -(-size // alignment) * alignment
