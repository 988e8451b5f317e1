"""Streaming intervals: the rate of every stream when tasks run at the same time.

Tasks connected by streams progress together, at the pace of the largest stream among them; a
smaller one has an element every S cycles. HPDC 2023 (see `graph`), section on steady states.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tilewright.base.dataclass import dataclass
from tilewright.dataflow.graph import Role, TaskGraph


def streaming(graph: TaskGraph, block: Sequence[int]) -> list[bool]:
    """Which edges stream: both ends in one spatial block, and the source is not a buffer.

    block: the spatial block of each node, -1 for sources and sinks.
    """
    return [
        block[e.source] == block[e.target] >= 0
        and graph.nodes[e.source].role is not Role.BUFFER
        for e in graph.edges
    ]


def components(graph: TaskGraph, streams: Sequence[bool]) -> list[int]:
    """For each node the number of its component: nodes connected by streams, in either direction.

    A component's number is the index of its first node.
    """
    root = list(range(len(graph.nodes)))

    def find(n: int) -> int:
        while root[n] != n:
            root[n] = root[root[n]]
            n = root[n]
        return n

    for e, streamed in zip(graph.edges, streams, strict=True):
        if streamed:
            a = find(e.source)
            b = find(e.target)
            root[max(a, b)] = min(a, b)
    return [find(n) for n in range(len(root))]


@dataclass(frozen=True, slots=True)
class Intervals:
    """The steady state. `pace[n]`: the volume of the largest stream of n's component, in cycles, or
    0 if none streams; `streams[e]`: whether an edge streams; `flows[e]`: whether it streams to a
    task. Streams into a buffer have the pace of their writer, because a buffer never stalls its
    writers."""

    graph: TaskGraph
    streams: Sequence[bool]
    flows: Sequence[bool]
    component: Sequence[int]
    pace: Sequence[int]

    def of(self, edge: int) -> Fraction:
        """Cycles between two elements of an edge; 1 if it does not stream."""
        e = self.graph.edges[edge]
        if not self.streams[edge]:
            return Fraction(1)
        return Fraction(self.pace[e.source], self.graph.produced[e.source])


def intervals(graph: TaskGraph, streams: Sequence[bool]) -> Intervals:
    """The intervals of all edges, given the streaming ones, as exact rationals."""
    held = [node.role is Role.BUFFER for node in graph.nodes]
    flows = [
        streamed and not held[e.target]
        for e, streamed in zip(graph.edges, streams, strict=True)
    ]
    component = components(graph, flows)
    fattest = [0] * len(graph.nodes)
    moving = [False] * len(graph.nodes)
    for n in range(len(graph.nodes)):
        c = component[n]
        inside = any(flows[e] for e in graph.outs[n])
        fattest[c] = max(
            fattest[c], graph.consumed[n], 0 if inside else graph.produced[n]
        )
        moving[c] |= any(streams[e] for e in graph.outs[n])
    pace = [fattest[c] if moving[c] else 0 for c in component]
    return Intervals(
        graph=graph,
        streams=streams,
        flows=flows,
        component=component,
        pace=pace,
    )
