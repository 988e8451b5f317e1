"""Copies of boxes by `cp.async.bulk.tensor`, and the mbarriers that count their bytes.

A copy is as late as it may be: its place has other bytes from the start on, and gets its own ones
when a thread asks the copy's mbarrier, the latest copy first. Found are

    an access to what is copied by a thread that has not waited for the phase of its mbarrier, and
        with which no thread that has came to a barrier since
    a copy to bytes that a product still reads, or that a thread wrote without a fence
    a copy into the memory of another block of the cluster, with no barrier of the cluster since
        something there used these bytes, or since the mbarrier there was made
    a block that ends before a box that is copied into its memory is there
    an mbarrier that counts other bytes than its copies bring, that is used before it was made or
        before a barrier behind that, or without a fence by a copy; one that nobody ends

Everything follows the PTX ISA ("mbarrier", "Tensor maps", "Swizzling modes").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from math import prod
from typing import Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.testing.ptx.arithmetic import Array
from tilewright.testing.ptx.async_proxy import AsyncProxy
from tilewright.testing.ptx.clusters import Clusters

_TURNS: Final = 50  # that threads may ask in vain
_BYTES: Final = 8  # of an mbarrier
_OTHER: Final = 0xFF


@dataclass(frozen=True, slots=True)
class EncodedMap:
    """What the driver encodes: a box of a tensor in memory, in rows of 128 swizzled bytes."""

    address: int
    itemsize: int
    extents: tuple[int, ...]
    sides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the box."""
        return prod(self.sides) * self.itemsize

    def read(self, memory: Array, start: Sequence[int]) -> Array:
        """The bytes of a box. start: its coordinates, outermost first."""
        at = np.meshgrid(
            *(first + np.arange(n) for first, n in zip(start, self.sides, strict=True)),
            indexing="ij",
        )
        inside = np.ones(self.sides, bool)
        flat = np.zeros(self.sides, np.int64)
        for index, extent in zip(at, self.extents, strict=True):
            inside &= (index >= 0) & (index < extent)
            flat = flat * extent + index
        places = self.address + flat * self.itemsize
        places = np.where(inside, places, 0)[..., None] + np.arange(self.itemsize)
        found: Array = memory[places]
        found[~inside] = 0
        return found.reshape(-1)


@dataclass(eq=False, slots=True)
class BoxInFlight:
    """places: its bytes of a block's shared memory, in the order of the box. seen: which threads of
    the block know that it is there."""

    of: EncodedMap
    start: tuple[int, ...]
    places: Array
    seen: Array


@dataclass(eq=False, slots=True)
class Mbarrier:
    """count: of arrivals in a phase; pending: that are missing; bytes_: that are. maker: the thread
    that made it; made: its arrival at the cluster behind that; is_known: whether the others of the
    block can see it."""

    count: int
    maker: int
    made: int
    pending: int
    phase: int = 0
    bytes_: int = 0
    turns: int = 0
    is_known: bool = False
    flying: list[BoxInFlight] = field(default_factory=list)
    landed: list[BoxInFlight] = field(default_factory=list)
    over: list[BoxInFlight] = field(default_factory=list)

    def advance(self) -> None:
        """End the phase if nothing is missing."""
        if self.pending == 0 and self.bytes_ == 0:
            self.phase += 1
            self.pending = self.count
            self.turns = 0
            self.over, self.landed = self.landed, []


@dataclass(eq=False, slots=True)
class BoxesInFlight:
    """The mbarriers of a grid, by block and place, and the boxes that it copies, by block. ended:
    blocks of which no thread runs any more."""

    memory: Array  # of the device
    shared: Array
    proxy: AsyncProxy
    threads: int
    clusters: Clusters
    barriers: dict[tuple[int, int], Mbarrier] = field(default_factory=dict)
    copies: dict[int, list[BoxInFlight]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def make(self, block: int, place: int, thread: int, count: int) -> None:
        """`mbarrier.init`"""
        made = int(self.clusters.arrivals[thread]) + 1
        self.barriers[block, place] = Mbarrier(count, thread, made, count)
        self.proxy.writer[block, place : place + _BYTES] = thread + 1

    def fence(self, blocks: Array, who: Array) -> None:
        """`fence.mbarrier_init`: what these threads made is there for copies."""
        for (block, place), barrier in self.barriers.items():
            if barrier.maker in who and block in blocks:
                self.proxy.writer[block, place : place + _BYTES] = 0

    def meet(self, block: int) -> None:
        """All threads of a block are at a barrier: what one knows, all do."""
        for (of, _), barrier in self.barriers.items():
            barrier.is_known |= of == block
        for copy in self.copies.get(block, ()):
            copy.seen |= copy.seen.any()

    def at(self, block: int, place: int, thread: int) -> Mbarrier:
        """Raises RuntimeError for one that the thread does not know."""
        found = self.barriers.get((block, place))
        if found is None:
            raise RuntimeError("there is no mbarrier at this place")
        if self.is_of_another(block, thread):
            if found.made > self.clusters.waits[thread]:
                raise RuntimeError(
                    "an mbarrier of another block is used with no barrier of the cluster since "
                    "it was made"
                )
        elif thread != found.maker and not found.is_known:
            raise RuntimeError("an mbarrier is used with no barrier since it was made")
        return found

    def is_of_another(self, block: int, thread: int) -> bool:
        """Whether a thread is of another block."""
        return thread // self.threads != block

    def end(self, block: int) -> None:
        """A block ends. Raises RuntimeError if a box is on its way into its memory."""
        self.ended.add(block)
        if not all(copy.seen.any() for copy in self.copies.get(block, ())):
            raise RuntimeError("a block ends with no wait for a box in its memory")

    def start(
        self,
        block: int,
        barrier: tuple[int, int],
        of: EncodedMap,
        start: tuple[int, ...],
        target: int,
    ) -> None:
        """A copy leaves, into the memory of a block. barrier: its place there, and the thread that
        copies. target: a place in shared memory."""
        place, thread = barrier
        if block in self.ended:
            raise RuntimeError("a box is copied into the memory of a block that ended")
        counted = self.at(block, place, thread)
        self.proxy.read(block, np.arange(place, place + _BYTES))
        if target % 128:
            raise RuntimeError("a box does not begin at a multiple of 128 bytes")
        at = target + np.arange(of.nbytes)
        row = at >> 7
        at = at ^ (row & 7) << 4
        if at.max() >= self.shared.shape[1]:
            raise IndexError("a box outside a block's memory")
        self.proxy.check_overwritten(block, at)
        self.proxy.read(block, at)
        seen = np.zeros(self.threads, bool)
        copy = BoxInFlight(of, start, at, seen)
        mine = self.copies.setdefault(block, [])
        for other in list(mine):
            meets = np.isin(at, other.places)
            if not meets.any():
                continue
            if not other.seen.any():
                raise RuntimeError("two copies to one place are in flight")
            mine.remove(other)
        if self.is_of_another(block, thread):
            self.clusters.check_order(block, at, thread)
        mine.append(copy)
        counted.flying.append(copy)
        self.shared[block, at] = _OTHER

    def is_over(self, block: int, place: int, thread: int, parity: int) -> bool:
        """`mbarrier.try_wait.parity`"""
        barrier = self.at(block, place, thread)
        for copy in reversed(barrier.flying):
            found = copy.of.read(self.memory, copy.start)
            self.shared[block, copy.places] = found
            barrier.landed.append(copy)
            barrier.bytes_ -= copy.places.size
        barrier.flying = []
        barrier.advance()
        if barrier.phase & 1 != parity:
            self.see(block, thread, barrier.over)
            return True
        barrier.turns += 1
        most = _TURNS * self.threads
        if barrier.pending == 0 or barrier.turns > most:
            raise RuntimeError(
                f"an mbarrier waits for {barrier.pending} threads and {barrier.bytes_} bytes "
                "that do not come"
            )
        return False

    def see(self, block: int, thread: int, copies: Iterable[BoxInFlight]) -> None:
        """A thread of the block has waited for the copies of a phase."""
        number = thread % self.threads
        who = np.array([thread])
        blocks = np.array([block])
        for copy in copies:
            if not copy.seen.any():
                self.clusters.use(blocks, copy.places[None], who)
            copy.seen[number] = True

    def touched(self, blocks: Array, places: Array, who: Array) -> None:
        """Threads access bytes of shared memory, a row of places each."""
        for block in np.unique(blocks).tolist():
            mine = blocks == block
            touched = places[mine]
            threads = who[mine] % self.threads
            for copy in self.copies.get(block, ()):
                found = np.isin(touched, copy.places)
                hit = threads[found.any(axis=-1)]
                known = copy.seen[hit]
                if not known.all():
                    raise RuntimeError("a box is accessed with no wait for its bytes")
