"""A grid of threads that runs a kernel of PTX: all threads at the same instruction together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from tilewright.testing.ptx.arithmetic import Array
from tilewright.testing.ptx.box_instructions import run_boxes
from tilewright.testing.ptx.boxes import EncodedMap
from tilewright.testing.ptx.cluster_barriers import meet_in_cluster
from tilewright.testing.ptx.clusters import Extents
from tilewright.testing.ptx.instructions import ThreadInstructions
from tilewright.testing.ptx.memory import CallerMemory
from tilewright.testing.ptx.state import WARP
from tilewright.testing.ptx.text import PtxInstruction, PtxKernel
from tilewright.testing.ptx.traffic import WarpTraffic
from tilewright.testing.ptx.wgmma import GROUP

_STEPS: Final = 1_000_000
# Instructions that threads of a warp do together.
_MASKED: Final = ("shfl.sync", "bar.warp.sync")
_TOGETHER: Final = (*_MASKED, "mma.sync", "ldmatrix.sync", "wgmma")


def run(
    kernel: PtxKernel,
    grid: Extents,
    threads: Extents,
    memory: CallerMemory,
    arguments: Sequence[int | EncodedMap],
    dynamic: int = 0,
    traffic: WarpTraffic | None = None,
    constants: Mapping[str, Array] = MappingProxyType({}),
) -> None:
    """Run a kernel in place. arguments: addresses, and descriptions of boxes. dynamic: bytes of
    shared memory without a size in the text. constants: what arrays in constant memory hold.

    traffic: counts memory requests.

    Raises IndexError for an access outside memory, RuntimeError for a barrier that only part of a
    block reaches, NotImplementedError for an unknown instruction.
    """
    with np.errstate(all="ignore"):
        made = _Grid(kernel, grid, threads, memory, arguments, dynamic, constants)
        made.traffic = traffic
        made.run()


class _Grid(ThreadInstructions):
    def run(self) -> None:
        """Always the threads that are after the others continue."""
        end = len(self.kernel.code)
        for _ in range(_STEPS):
            ready = (self.pc < end) & ~self.waiting
            if not ready.any():
                if not self.waiting.any():
                    return
                raise RuntimeError(
                    f"{self.kernel.name}: not all threads reach a barrier"
                )
            self._step(*self._fair(ready))
        raise RuntimeError(f"{self.kernel.name} does not end")

    def _fair(self, ready: Array) -> tuple[PtxInstruction, Array, int]:
        """As `_next`; those that asked for something in vain come after the others."""
        others = ready & ~self.asked
        if self.asked.any() and others.any():
            try:
                return self._next(others)
            except RuntimeError:
                pass  # they wait for one that asks
        self.asked[:] = False
        return self._next(ready)

    def _next(self, ready: Array) -> tuple[PtxInstruction, Array, int]:
        """The first instruction that some threads can run, these threads, and its index.

        A shuffle waits for all threads that its mask names, and a product for its warp: some may
        still have earlier instructions to run.
        """
        ready = ready.copy()
        while ready.any():
            at = int(self.pc[ready].min())
            i = self.kernel.code[at]
            who = np.flatnonzero(ready & (self.pc == at))
            if i.op.startswith(_TOGETHER):
                who = self._complete(i, who)
            if who.size:
                return i, who, at
            ready &= self.pc != at
        raise RuntimeError(f"{self.kernel.name}: a neighbor is not at the shuffle")

    def _complete(self, i: PtxInstruction, who: Array) -> Array:
        """The threads for which every participating thread of their warp has arrived."""
        mask = "-1"
        if i.op.startswith(_MASKED):
            mask = i.operands[-1]
        thread = self.thread[who]
        warps = -(-self.per_block // WARP)
        warp = self.block[who] * warps + thread // WARP
        bit = np.uint64(1) << (thread % WARP).astype(np.uint64)
        shape = int(warp.max()) + 1
        here = np.zeros(shape, np.uint64)
        np.bitwise_or.at(here, warp, bit)
        left = np.minimum(self.per_block - thread // WARP * WARP, WARP)
        there = (np.uint64(1) << left.astype(np.uint64)) - np.uint64(1)
        named = self.get(mask, "u64", who) & there
        complete: Array = who[named & ~here[warp] == 0]
        if i.op.startswith("wgmma"):
            group = self.groups(complete)
            _, number, counts = np.unique(
                group, return_inverse=True, return_counts=True
            )
            complete = complete[counts[number] == GROUP]
        return complete

    def _step(
        self,
        i: PtxInstruction,
        who: Array,
        at: int,
    ) -> None:
        self.pc[who] = at + 1
        if i.guard:
            guard = self.register(i.guard)
            holds = guard[who].astype(bool)
            who = who[holds != i.negated]
        if not who.size:
            return
        base, *modes = i.op.split(".")
        if base == "bra":
            self.pc[who] = self.kernel.labels[i.operands[0]]
        elif base == "ret":
            self.pc[who] = len(self.kernel.code)
            self._end(who)
        elif i.op.startswith("barrier.cluster"):
            meet_in_cluster(self, modes[1], who)
        elif i.op == "bar.warp.sync":
            self.check_warps(who)
        elif base in ("bar", "barrier"):
            self._meet(i.operands, who)
        elif base in ("wgmma", "fence"):
            self.beside(base, modes, i.operands, who)
        elif base == "mbarrier" or i.op.startswith("cp.async.bulk"):
            run_boxes(self, modes, i.operands, who)
        else:
            self.compute(base, modes, i.operands, who)

    def _meet(self, operands: tuple[str, ...], who: Array) -> None:
        """The threads of a block continue when all of them wait at a barrier, or have ended; or as
        many as it says. Raises RuntimeError if more come."""
        number, *counts = operands
        self.waiting[who] = True
        self.barrier[who] = self.get(number, "u32", who)
        gone = self.pc >= len(self.kernel.code)
        for barrier in np.unique(self.barrier[who]).tolist():
            here = self.waiting & (self.barrier == barrier)
            enough = self.per_block
            came = here | (gone & ~self.waiting)
            if counts:
                enough = int(self.get(counts[0], "u32", who)[0])
                came = here
            arrived = came.reshape(-1, self.per_block).sum(axis=1)
            if (arrived > enough).any():
                raise RuntimeError(f"{self.kernel.name}: a barrier is for {enough}")
            self.waiting &= ~(here & (arrived == enough)[self.block])
            if self.traffic is not None:
                met = (arrived == enough)[np.unique(self.block[here])]
                self.traffic.meetings += int(met.sum())
            if self.boxes is not None and not counts:
                for block in np.flatnonzero(arrived == enough).tolist():
                    self.boxes.meet(block)

    def _end(self, who: Array) -> None:
        """Threads end. Raises RuntimeError if a block does that too early."""
        if self.boxes is None and self.peers is None:
            return
        ended = self.pc >= len(self.kernel.code)
        for block in np.unique(self.block[who]).tolist():
            if not ended[self.block == block].all():
                continue
            if self.boxes is not None:
                self.boxes.end(block)
            if self.peers is not None:
                self.peers.end(block)
