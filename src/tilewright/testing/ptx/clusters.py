"""Clusters of blocks of PTX: which blocks run together, and what their barriers order.

A thread arrives at a barrier of its cluster (`barrier.cluster.arrive`) and later waits there until
all threads of the cluster have arrived that have not ended. What a thread did before its n-th
arrival is in front of what any of them does behind its n-th wait. `Clusters` keeps, for each byte
of shared memory, behind which arrival it is in use no more, and finds

    a box that another block copies there in front of the wait for that
    a thread that arrives twice, or that waits without having arrived

Everything follows the PTX ISA ("Cluster of Cooperative Thread Arrays", "barrier.cluster").
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.testing.ptx.arithmetic import Array

Extents = tuple[int, int, int]


@dataclass(eq=False, slots=True)
class Clusters:
    """peers: of each block, the blocks of its cluster by rank. arrivals, waits: of each thread.
    used: of each byte of a block's shared memory, the arrival behind its last use."""

    peers: Array
    arrivals: Array
    waits: Array
    used: Array

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return int(self.peers.shape[1])

    def use(
        self,
        block: Array,
        places: Array,
        who: Array,
    ) -> None:
        """Threads use bytes of their blocks, or a unit has used them for these."""
        if self.blocks == 1:
            return
        next_ones = self.arrivals[who] + 1
        arrival = np.broadcast_to(next_ones[:, None], places.shape)
        rows = block[:, None]
        np.maximum.at(self.used, (rows, places), arrival)

    def arrive(self, who: Array) -> None:
        """Raises RuntimeError for a thread that has not waited since it arrived."""
        arrived = self.arrivals[who]
        if (arrived > self.waits[who]).any():
            raise RuntimeError("a thread arrives twice at a barrier of its cluster")
        self.arrivals[who] += 1

    def released(self, inside: Array, ended: Array) -> Array:
        """Of the threads of a cluster those for whose next wait all have arrived. ended: threads
        that need not arrive."""
        running = inside & ~ended
        least = self.arrivals[running].min()
        is_next = self.waits < least
        free: Array = inside & is_next
        return free

    def check_arrived(self, who: Array) -> None:
        """Raises RuntimeError for a thread that waits without having arrived."""
        arrived = self.arrivals[who]
        if (arrived == self.waits[who]).any():
            raise RuntimeError("a thread waits that has not arrived at its cluster")

    def check_order(self, block: int, places: Array, thread: int) -> None:
        """A thread of another block copies to these bytes of a block. Raises RuntimeError if it may
        come in front of a use of these."""
        last = self.used[block, places].max()
        if last > self.waits[thread]:
            raise RuntimeError(
                "a box is copied into the memory of another block with no barrier of the "
                "cluster since that used it"
            )

    def in_mask(self, block: int, mask: int) -> list[int]:
        """The blocks of a cluster whose bits are set. Raises RuntimeError for a bit of none."""
        if not 0 < mask < 1 << self.blocks:
            raise RuntimeError(f"{mask:#x} is not a mask of {self.blocks} blocks")
        ranks = [n for n in range(self.blocks) if mask >> n & 1]
        found: list[int] = self.peers[block, ranks].tolist()
        return found


def clusters_of(
    grid: Extents, cluster: Extents, per_block: int, nbytes: int
) -> Clusters:
    """Those of a grid. per_block: threads; nbytes: of a block's shared memory.

    Raises ValueError for a grid that has no such clusters.
    """
    blocks = prod(grid)
    size = prod(cluster)
    steps = []
    for n, c in zip(grid[::-1], cluster[::-1], strict=True):
        if n % c:
            raise ValueError(f"a grid of {grid} has no clusters of {cluster}")
        steps += [n // c, c]
    number = np.arange(blocks)
    parts = number.reshape(steps)
    together = parts.transpose(0, 2, 4, 1, 3, 5)
    rows = together.reshape(-1, size)
    peers = np.zeros((blocks, size), np.int64)
    for row in rows:
        peers[row] = row
    if size == 1:
        nbytes = 0  # nobody asks
    threads = blocks * per_block
    arrivals = np.zeros(threads, int)
    waits = np.zeros(threads, int)
    used = np.zeros((blocks, nbytes), np.int32)
    return Clusters(peers, arrivals, waits, used)
