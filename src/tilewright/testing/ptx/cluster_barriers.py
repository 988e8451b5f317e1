"""The barrier of a cluster: `barrier.cluster.arrive` and `barrier.cluster.wait`."""

from __future__ import annotations

from typing import Final

import numpy as np

from tilewright.testing.ptx.arithmetic import Array
from tilewright.testing.ptx.state import ThreadState

WAITING: Final = -1  # the number of this barrier, which no barrier of a block has


def meet_in_cluster(state: ThreadState, mode: str, who: Array) -> None:
    """Threads continue when all of their cluster that have not ended have arrived. mode: "arrive"
    or "wait". Raises RuntimeError as `Clusters`."""
    clusters = state.clusters
    if mode == "arrive":
        clusters.arrive(who)
    else:
        clusters.check_arrived(who)
        state.waiting[who] = True
        state.barrier[who] = WAITING
    ended = state.pc >= len(state.kernel.code)
    for peers in np.unique(clusters.peers[state.block[who]], axis=0):
        inside = np.isin(state.block, peers)
        is_here = state.barrier == WAITING
        gone = ended & ~state.waiting
        released = clusters.released(inside, gone)
        free = state.waiting & is_here & released
        if not free.any():
            continue
        clusters.waits[free] += 1
        state.waiting &= ~free
        if state.boxes is not None:
            for block in peers.tolist():
                state.boxes.meet(block)
