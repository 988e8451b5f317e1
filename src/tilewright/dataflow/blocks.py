"""Spatial blocks: the sets of tasks that run at the same time, at most one per processing element.

A greedy walk over the ready nodes, in the order of the graph. A block grows from its sources; a
node that descends from a source joins if its work is at most the source's. HPDC 2023 (see `graph`).
The tasks of a node with several are placed one after the other; blocks that they fill alone are
formed at once.
"""

from __future__ import annotations

import heapq
from enum import StrEnum

from tilewright.base.dataclass import dataclass
from tilewright.dataflow.graph import Role, TaskGraph


class Heuristic(StrEnum):
    """How to treat a ready node that has more work than the source it descends from.

    lts: it opens a new block. rlx: it joins the block when nothing else fits, so that blocks fill.
    """

    LTS = "lts"
    RLX = "rlx"


@dataclass(slots=True)
class TaskShare:
    """Some of the tasks of a node: `count` in block `block`, and, if the node has that block alone,
    as many in each of the `turns` - 1 following blocks."""

    node: int
    block: int
    count: int
    turns: int = 1


def spatial_blocks(graph: TaskGraph, pes: int, heuristic: Heuristic) -> list[TaskShare]:
    """The blocks of all tasks and buffers, numbered in execution order.

    A block has at most `pes` tasks; buffers do not count. Takes O((n + e + b) log n) for b blocks
    with tasks of several nodes.
    """
    walk = _BlockWalk(graph, pes, heuristic)
    walk.run()
    return walk.shares


class _BlockWalk:
    """The state of the walk: the current block, and the ready nodes by category.

    free: descend from no source of the block, so each may become one (by position).
    fits, heavy: descend from one and may join it, or have too much work to (by work).
    left: tasks of each node without a block yet.
    """

    def __init__(self, graph: TaskGraph, pes: int, heuristic: Heuristic) -> None:
        self.graph = graph
        self.pes = pes
        self.heuristic = heuristic
        self.shares: list[TaskShare] = []
        self.current = 0
        self.tasks = 0
        self.sources: list[int] = []
        self.lead: dict[int, int] = {}
        self.left = [node.count for node in graph.nodes]
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
        """Place the next node; its remaining tasks stay in the queue."""
        if self.free:
            n = self.free[0]
            if not self._alone(n):
                self._lead(n, self._room(n))
            if not self.left[n]:
                heapq.heappop(self.free)
                self._release(n)
        elif self.fits:
            self._join(self.fits, -self.fits[0][1])
        elif self.heuristic is Heuristic.RLX:
            self._join(self.heavy, self.heavy[0][1])
        else:
            _, n = self.heavy[0]
            self._open()
            self._lead(n, 1)
            if not self.left[n]:
                self.free.remove(n)
                heapq.heapify(self.free)
                self._release(n)
        if self.tasks >= self.pes:
            self._open()

    def _room(self, n: int) -> int:
        """How many of a node's tasks the block can still take."""
        if self.graph.nodes[n].role is not Role.COMPUTE:
            return 1
        return min(self.left[n], self.pes - self.tasks)

    def _alone(self, n: int) -> bool:
        """Whether the first free node was given complete blocks of its tasks."""
        turns = (
            self.left[n] // self.pes if self.graph.nodes[n].role is Role.COMPUTE else 0
        )
        if turns < 2 or self.tasks or self.fits or self.heavy:
            return False
        self.shares.append(
            TaskShare(
                node=n,
                block=self.current,
                count=self.pes,
                turns=turns,
            )
        )
        self.left[n] -= self.pes * turns
        self.tasks = self.pes
        self.current += turns - 1
        return True

    def _lead(self, n: int, count: int) -> None:
        """Make `n` a source of the block."""
        if n not in self.lead:
            self.lead[n] = len(self.sources)
            self.sources.append(n)
        self._place(n, count)

    def _join(self, queue: list[tuple[int, int]], n: int) -> None:
        """Let tasks of `n`, the first of `queue`, join the block as far as there is room."""
        self._place(n, self._room(n))
        if not self.left[n]:
            heapq.heappop(queue)
            self._release(n)

    def _place(self, n: int, count: int) -> None:
        """Add `count` tasks of `n` to the block."""
        self.left[n] -= count
        self.shares.append(TaskShare(n, self.current, count))
        if self.graph.nodes[n].role is Role.COMPUTE:
            self.tasks += count

    def _release(self, n: int) -> None:
        """All of `n` is placed: its successors without other missing inputs become ready."""
        for e in self.graph.outs[n]:
            target = self.graph.edges[e].target
            self.missing[target] -= 1
            if self.missing[target] == 0:
                self._ready(target)

    def _ready(self, n: int) -> None:
        """Queue a node that has become ready as free, fitting or heavy."""
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
        """Open a new block, with no sources yet."""
        self.current += 1
        self.tasks = 0
        self.sources = []
        self.lead = {}
        for _, n in self.heavy:
            heapq.heappush(self.free, n)
        for _, n in self.fits:
            heapq.heappush(self.free, -n)
        self.heavy = []
        self.fits = []
