"""Offsets in one arena from lifetimes, and the lower bound of the arena's size.

Greedy: each buffer is placed at the lowest gap that is free for its whole lifetime. Some order of
placing reaches the smallest arena: that of the offsets there. Two orders of Pisarchyk and Lee,
"Efficient Memory Management for Deep Neural Net Inference" (2020), are tried, by size and by
breadth; if neither reaches the bound, hill climbing goes on from the better one: the buffer at the
top of the arena is placed earlier.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.runtime.abi import ALIGNMENT

_PLACEMENTS: Final = 20_000  # of single buffers while climbing: at most a second
_UPHILL: Final = 0.1  # probability of a step to a larger arena


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
    for keys in (_by_size(lives), _by_breadth(lives, profile)):
        order = sorted(range(len(lives)), key=keys.__getitem__)
        found = _placed(lives, order, alignment)
        if not best.offsets or found.total < best.total:
            best = found
        if best.total <= bound:
            return best
    return _climbed(lives, best, bound, alignment)


def _climbed(
    lives: Sequence[Lifetime],
    start: Arena,
    bound: int,
    alignment: int,
) -> Arena:
    """The smallest arena found by hill climbing over orders, from that of the offsets in `start`.

    A step takes a buffer at the top, and one that was placed before it and is in its way: they
    change places, or the first moves in front of the second. The same for the same lifetimes.
    """
    choose = random.Random(0)
    best = now = start
    order = sorted(range(len(lives)), key=start.offsets.__getitem__)
    for _ in range(_PLACEMENTS // len(lives)):
        if best.total <= bound:
            break
        ends = [at + _aligned(v.size, alignment) for v, at in zip(lives, now.offsets)]
        top = choose.choice([n for n in order if ends[n] == now.total])
        behind = order.index(top)
        before = [
            k for k, n in enumerate(order[:behind]) if _together(lives[n], lives[top])
        ]
        if not before:
            break
        front = choose.choice(before)
        trial = list(order)
        if choose.random() < 0.5:
            trial[front], trial[behind] = trial[behind], trial[front]
        else:
            trial.insert(front, trial.pop(behind))
        found = _placed(lives, trial, alignment)
        if found.total <= now.total or choose.random() < _UPHILL:
            order, now = trial, found
        if found.total < best.total:
            best = found
    return best


def _by_size(
    lives: Sequence[Lifetime],
) -> list[tuple[int, ...]]:
    return [(-v.size, v.first) for v in lives]


def _by_breadth(
    lives: Sequence[Lifetime], profile: Sequence[int]
) -> list[tuple[int, ...]]:
    """Buffers that are live at the fullest step are placed first."""
    return [(-max(profile[v.first : v.last + 1]), -v.size, v.first) for v in lives]


def _placed(lives: Sequence[Lifetime], order: Iterable[int], alignment: int) -> Arena:
    """The buffers placed one after another."""
    # Each its offset, end and lifetime; sorted by offset.
    placed: list[tuple[int, int, Lifetime]] = []
    offsets = [0] * len(lives)
    total = 0
    for n in order:
        life = lives[n]
        size = _aligned(life.size, alignment)
        taken = [(a, b) for a, b, other in placed if _together(other, life)]
        offset = _gap(taken, size)
        offsets[n] = offset
        placed.append((offset, offset + size, life))
        placed.sort(key=lambda p: p[0])
        total = max(total, offset + size)
    return Arena(tuple(offsets), total)


def _together(a: Lifetime, b: Lifetime) -> bool:
    """Whether both are alive at some step."""
    return a.first <= b.last and b.first <= a.last


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The lowest offset of `size` free bytes beside the taken ranges, which are sorted."""
    end = 0
    for start, stop in taken:
        if start - end >= size:
            break
        end = max(end, stop)
    return end


def _aligned(
    size: int,
    alignment: int,
) -> int:
    return -(-size // alignment) * alignment
