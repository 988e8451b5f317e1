"""Shared memory of other blocks of a cluster: `mapa`, and what loads there may see.

`mapa` makes an address in the space of a cluster from one of a block and the number of a block in
the cluster. What a thread does before its n-th arrival at a barrier of the cluster is in front of
what any does behind its n-th wait. `PeerMemory` keeps, for each byte of shared memory, behind which
arrival the last write there is, and the last read by another block, and finds

    a read by another block of what was written, or before that block must have begun, with no
        barrier of the cluster between
    a write where another block has read, with no barrier of the cluster between
    a block that ends with no barrier of the cluster since another one used its memory
    a write to the memory of another block, which no kernel here does

Everything follows the PTX ISA ("mapa", "State spaces", "barrier.cluster").
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.testing.ptx.arithmetic import Array
from tilewright.testing.ptx.clusters import Clusters

RANK: Final = 1 << 32  # between the addresses of two blocks


@dataclass(eq=False, slots=True)
class PeerMemory:
    """clusters: of the grid. block: of each thread. written, used: of each byte of each block's
    memory, the arrival behind the last write, and behind the last read by another block."""

    clusters: Clusters
    block: Array
    written: Array
    used: Array
    ended: set[int] = field(default_factory=set)

    def home(
        self,
        rank: Array,
        who: Array,
    ) -> Array:
        """The blocks that have these numbers in the clusters of threads."""
        if (rank >= self.clusters.blocks).any():
            raise IndexError(f"a cluster has {self.clusters.blocks} blocks")
        own = self.block[who]
        found: Array = self.clusters.peers[own, rank]
        return found

    def use(
        self,
        home: Array,
        places: Array,
        who: Array,
    ) -> None:
        """Threads read bytes of blocks of their clusters."""
        others = home != self.block[who]
        home = home[others]
        places = places[others]
        who = who[others]
        waits = self.clusters.waits[who]
        if not waits.all():
            raise RuntimeError(
                "a thread uses memory of a block that may not have begun"
            )
        if not self.ended.isdisjoint(home.tolist()):
            raise RuntimeError("a thread uses memory of a block that has ended")
        rows = home[:, None]
        if (self.written[rows, places] > waits[:, None]).any():
            raise RuntimeError(
                "a thread reads what another block has written with no barrier of the cluster "
                "between"
            )
        self.note(self.used, home, places, who)

    def wrote(
        self,
        home: Array,
        places: Array,
        who: Array,
    ) -> None:
        """Threads write bytes of blocks of their clusters."""
        if (home != self.block[who]).any():
            raise RuntimeError("a thread writes to the memory of another block")
        rows = home[:, None]
        waits = self.clusters.waits[who]
        if (self.used[rows, places] > waits[:, None]).any():
            raise RuntimeError(
                "a thread writes what another block has read with no barrier of the cluster "
                "between"
            )
        self.note(self.written, home, places, who)

    def note(
        self,
        last: Array,
        home: Array,
        places: Array,
        who: Array,
    ) -> None:
        """The next arrivals of threads are behind what they do there."""
        arrivals = self.clusters.arrivals[who] + 1
        rows = home[:, None]
        here = rows, places
        arrival = np.broadcast_to(arrivals[:, None], places.shape)
        np.maximum.at(last, here, arrival)

    def end(self, block: int) -> None:
        """A block ends."""
        self.ended.add(block)
        waits = self.clusters.waits[self.block == block]
        if self.used[block].max(initial=0) > waits.min():
            raise RuntimeError(
                "a block ends with no barrier of the cluster since another block used its memory"
            )
