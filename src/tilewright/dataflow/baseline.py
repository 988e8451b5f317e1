"""The baseline schedule without streaming: each task waits for its complete inputs.

List scheduling by upward rank as in HEFT (Topcuoglu et al., IEEE TPDS 2002), on equal processing
elements and with no cost of communication.
"""

from __future__ import annotations

import heapq

from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.dataflow.graph import Role, TaskGraph


def upward_rank(graph: TaskGraph) -> list[int]:
    """Cycles from the start of each node to the end of the longest chain that begins with it."""
    rank = [0] * len(graph.nodes)
    for n in reversed(graph.order):
        rank[n] = graph.work[n] + max((rank[v] for v in graph.successors(n)), default=0)
    return rank


def nonstreaming_makespan(graph: TaskGraph, pes: int) -> int:
    """Cycles of the whole graph on `pes` processing elements; InputError for fewer than one.

    Once all that ends in a cycle has ended, the ready tasks of the highest rank start on the
    elements that are free.
    """
    if whole(pes, 1) is None:
        raise InputError(
            f"{pes!r} processing elements", hint="give an integer of at least 1"
        )
    rank = upward_rank(graph)
    missing = [len(edges) for edges in graph.ins]
    ready: list[tuple[int, int]] = []
    running: list[tuple[int, int, int]] = []
    left = [node.count for node in graph.nodes]
    ended = [0] * len(graph.nodes)
    now, idle = 0, pes

    def release(node: int) -> None:
        """The node and all memory behind it are done: what waited for them only is ready."""
        done = [node]
        for n in done:
            for v in graph.successors(n):
                missing[v] -= 1
                if missing[v]:
                    continue
                if graph.nodes[v].role is Role.COMPUTE:
                    heapq.heappush(ready, (-rank[v], v))
                else:
                    done.append(v)

    for n, edges in enumerate(graph.ins):
        if not edges:
            release(n)
    while ready or running:
        while ready and idle:
            _, n = ready[0]
            count = min(idle, left[n])
            idle -= count
            left[n] -= count
            heapq.heappush(running, (now + graph.work[n], n, count))
            if not left[n]:
                heapq.heappop(ready)
        now = running[0][0]
        while running and running[0][0] == now:
            _, n, count = heapq.heappop(running)
            idle += count
            ended[n] += count
            if ended[n] == graph.nodes[n].count:
                release(n)
    return now
