"""What the requests of warps cost, for all threads of many rounds at once: sectors and turns.

Families of schedules say which thread accesses which byte; here is what that costs, as the
interpreter of PTX counts it. Where a pattern repeats, its first rounds stand for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from tilewright.targets.simt.cost import SECTOR, WORD, in_step
from tilewright.targets.simt.machine import SimtMachine

Array = np.ndarray[Any, Any]
_NONE: Final = -1  # the place of a thread that accesses nothing


class LaunchCounts(NamedTuple):
    """What all blocks of a launch ask for.

    read, written: sectors of the device's memory. stored, loaded: turns of the banks of shared
    memory. meetings: of all threads of a block, for each block. shared: bytes of a block.
    """

    read: int = 0
    written: int = 0
    stored: int = 0
    loaded: int = 0
    meetings: int = 0
    shared: int = 0

    @property
    def moved(self) -> int:
        """Bytes of the device's memory."""
        return SECTOR * (self.read + self.written)


def repeated(count: int, period: int) -> Iterator[tuple[int, int]]:
    """The first of `count` rounds, and how many of all are like each: every `period`-th is."""
    for n in range(min(count, period)):
        yield n, -(-(count - n) // period)


def sector_period(step: int) -> int:
    """After how many steps of so many bytes a place is as far into a sector as before."""
    return SECTOR // math.gcd(step, SECTOR)


def sectors_of(places: Array, active: Array | bool, machine: SimtMachine) -> int:
    """The sectors of one request of each warp.

    places: the byte of each thread, its threads along the last axis; an element is in one sector.
    """
    own = _of_warps(places // SECTOR, active, in_step(machine))
    return int(_distinct(np.sort(own)).sum())


def turns_of(
    places: Array, active: Array | bool, size: int, machine: SimtMachine
) -> int:
    """The turns of the banks for one request of each warp, of `size` bytes of each thread."""
    wide = max(size // WORD, 1)
    group = min(in_step(machine), machine.banks // wide)
    own = _of_warps(places // WORD, active, group).reshape(-1, group)
    words = own[..., None] + np.arange(wide)
    words = np.where(own[..., None] == _NONE, _NONE, words).reshape(len(own), -1)
    words = np.sort(words)
    first = _distinct(words)
    row = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    banks = (row * machine.banks + words % machine.banks)[first]
    held = np.bincount(banks, minlength=len(words) * machine.banks)
    return int(held.reshape(-1, machine.banks).max(axis=1).sum())


def _of_warps(places: Array, active: Array | bool, warp: int) -> Array:
    """By warps along the last axis; the places of threads that access nothing are none."""
    shown = np.where(active, places, _NONE)
    missing = -shown.shape[-1] % warp
    widths = [(0, 0)] * (shown.ndim - 1) + [(0, missing)]
    padded = np.pad(shown, widths, constant_values=_NONE)
    return padded.reshape(*padded.shape[:-1], -1, warp)


def _distinct(ordered: Array) -> Array:
    """Which of sorted places differ from the one before."""
    before = np.concatenate(
        [np.full_like(ordered[..., :1], _NONE), ordered[..., :-1]], axis=-1
    )
    found: Array = ordered != before
    return found
