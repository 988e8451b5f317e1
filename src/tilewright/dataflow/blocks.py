"""Spatial blocks: which tasks run side by side, at most one on each processing element.

A greedy walk over the ready nodes, in the order of the graph. A block grows from its sources; a
node that descends from one joins if its work is at most the source's. HPDC 2023 (see `graph`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from enum import StrEnum

from tilewright.dataflow.graph import Role, TaskGraph


class Heuristic(StrEnum):
    """What to do with a ready node that has more work than the source it descends from.

    lts: it opens a new block. rlx: it joins the block when nothing else fits, so that blocks fill.
    """

    LTS = "lts"
    RLX = "rlx"


def spatial_blocks(graph: TaskGraph, pes: int, heuristic: Heuristic) -> list[int]:
    """The block of each node, blocks numbered in the order they run; -1 for sources and sinks.

    A block has at most `pes` tasks; buffers ride along. Takes O((n + e) log n).
    """
    walk = _Walk(graph, pes, heuristic)
    walk.run()
    return walk.block


class _Walk:
    """The state of the walk: the current block, and the ready nodes by what they may do.

    free: descend from no source of the block, so each may become one (by position).
    fits, heavy: descend from one and may join it, or have too much work to (by work).
    """

    def __init__(self, graph: TaskGraph, pes: int, heuristic: Heuristic) -> None:
        self.graph = graph
        self.pes = pes
        self.heuristic = heuristic
        self.block = [-1] * len(graph.nodes)
        self.current = 0
        self.tasks = 0
        self.sources: list[int] = []
        self.lead: dict[int, int] = {}
        self.missing = [len(edges) for edges in graph.ins]
        self.free: list[int] = []
        self.fits: list[tuple[int, int]] = []
        self.heavy: list[tuple[int, int]] = []

    def run(self) -> None:
        for n, edges in enumerate(self.graph.ins):
            if not edges:
                self._ready(n)
        while self.free or self.fits or self.heavy:
            self._step()

    def _step(self) -> None:
        if self.free:
            self._lead(heapq.heappop(self.free))
        elif self.fits:
            self._place(-heapq.heappop(self.fits)[1])
        elif self.heuristic is Heuristic.RLX:
            self._place(heapq.heappop(self.heavy)[1])
        else:
            _, n = heapq.heappop(self.heavy)
            self._open()
            self._lead(n)
        if self.tasks >= self.pes:
            self._open()

    def _lead(self, n: int) -> None:
        """`n` becomes a source of the block."""
        self.lead[n] = len(self.sources)
        self.sources.append(n)
        self._place(n)

    def _place(self, n: int) -> None:
        """`n` joins the block; what it was the last to hold back becomes ready."""
        self.block[n] = self.current
        self.tasks += self.graph.nodes[n].role is Role.COMPUTE
        self._release(n)

    def _release(self, n: int) -> None:
        for target in self.graph.successors(n):
            self.missing[target] -= 1
            if self.missing[target] == 0:
                self._ready(target)

    def _ready(self, n: int) -> None:
        """Sort a node that has become ready among the free, the fitting and the heavy."""
        role = self.graph.nodes[n].role
        if role in (Role.SOURCE, Role.SINK):
            self._release(n)
            return
        leads = [self.lead[u] for u in self.graph.predecessors(n) if u in self.lead]
        if not leads:
            heapq.heappush(self.free, n)
            return
        self.lead[n] = min(leads)
        work = self.graph.work[n]
        if role is Role.BUFFER or work <= self.graph.work[self.sources[self.lead[n]]]:
            heapq.heappush(self.fits, (-work, -n))
        else:
            heavier = -work if self.heuristic is Heuristic.LTS else work
            heapq.heappush(self.heavy, (heavier, n))

    def _open(self) -> None:
        """A new block: nobody descends from its sources yet."""
        self.current += 1
        self.tasks = 0
        self.sources = []
        self.lead = {}
        for _, n in self.heavy:
            heapq.heappush(self.free, n)
        for _, n in self.fits:
            heapq.heappush(self.free, -n)
        self.heavy, self.fits = [], []


def members(block: Sequence[int], order: Sequence[int]) -> list[list[int]]:
    """The nodes of each block, in topological order, empty blocks left out."""
    found: dict[int, list[int]] = {}
    for n in order:
        if block[n] >= 0:
            found.setdefault(block[n], []).append(n)
    return [found[b] for b in sorted(found)]
