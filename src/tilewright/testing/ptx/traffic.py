"""Counts the memory requests of a kernel's warps while it is interpreted.

A request is one instruction of one warp. In device memory it takes one transaction per sector of 32
bytes that its threads touch. In shared memory it takes as many as the largest number of distinct
words in one bank: a word is read once for all threads. Threads that access 8 or 16 bytes each are
served by half or quarter warps, one after another; threads that access nothing have their places
there, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Final, NamedTuple

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.testing.ptx.arithmetic import Array

SECTOR: Final = 32  # bytes
WORD: Final = 4  # bytes of a bank
BANKS: Final = 32
# By the number of the space of an address; kernels do not access the one of parameters.
_MEMORIES: Final = ("global", "shared", "local", "param", "constant", "cluster")


class AccessKind(NamedTuple):
    """memory: "global", "shared", "constant", "local" for a thread's own, or "cluster" for shared
    memory of any of its blocks. writes: whether it is
    a store."""

    memory: str
    writes: bool


@dataclass(slots=True)
class WarpTraffic:
    """By kind of access: requests of warps, transactions, and bytes that threads touch.

    products, group_products: instructions of tensor cores, of warps and of four in a row. boxes:
    bytes of the device's memory that copies of boxes read. meetings: of all threads of a block.
    """

    requests: Counter[AccessKind] = field(default_factory=Counter)
    turns: Counter[AccessKind] = field(default_factory=Counter)
    nbytes: Counter[AccessKind] = field(default_factory=Counter)
    products: int = 0
    group_products: int = 0
    boxes: int = 0
    meetings: int = 0

    def note(
        self,
        space: int,
        writes: bool,
        at: Array,
        size: int,
        threads: tuple[Array, Array],
    ) -> None:
        """An instruction of some threads. at: the first of `size` bytes of each; threads: their
        warps, and their numbers there."""
        warps, lanes = threads
        kind = AccessKind(_MEMORIES[space], writes)
        self.nbytes[kind] += size * at.size
        turns_of = _TURNS[kind.memory]
        for warp in np.unique(warps).tolist():
            here = warps == warp
            own = at[here].astype(np.int64)
            self.requests[kind] += 1
            self.turns[kind] += turns_of(own, size, lanes[here])


def _words(at: Array, size: int) -> Array:
    """The start of each word of `size` bytes at these addresses."""
    step = min(size, WORD)
    within = np.arange(0, size, step)
    touched: Array = at[:, None] + within
    return touched.reshape(-1)


def _sectors(at: Array, size: int, _: Array) -> int:
    places = _words(at, size)
    sectors = np.unique(places // SECTOR)
    return int(sectors.size)


def _bank_turns(at: Array, size: int, lanes: Array) -> int:
    """Of threads in groups that want at most as much as all banks have."""
    groups = lanes // (BANKS * WORD // max(size, WORD))
    turns = 0
    for group in np.unique(groups).tolist():
        places = _words(at[groups == group], size)
        words = np.unique(places // WORD)
        of_banks = np.bincount(words % BANKS)
        turns += int(of_banks.max())
    return turns


def _places(at: Array, size: int, _: Array) -> int:
    """One for each of the places that threads read: a warp is given one at a time."""
    return int(np.unique(at).size)


_TURNS: Final = {
    "global": _sectors,
    "shared": _bank_turns,
    "cluster": _bank_turns,
    "local": _sectors,
    "constant": _places,
}
