"""Lower bounds on a makespan: the depths of a task graph, with and without streaming."""

from __future__ import annotations

from fractions import Fraction

from tilewright.dataflow.baseline import upward_rank
from tilewright.dataflow.graph import Role, TaskGraph
from tilewright.dataflow.intervals import components


def critical_path(graph: TaskGraph) -> int:
    """Cycles of the longest chain of tasks when each waits for the whole of its inputs."""
    return max(upward_rank(graph), default=0)


def streaming_depth(graph: TaskGraph) -> int:
    """Cycles that a streaming schedule needs however many processing elements there are.

    The level of a node is max(R, 1) above its highest predecessor. What is left when sources, sinks
    and the out-edges of buffers are taken away falls into components; the largest of their fattest
    stream and the level of their last node together is the depth. HPDC 2023 (see `graph`).
    """
    memory = [node.role in (Role.SOURCE, Role.SINK) for node in graph.nodes]
    held = [memory[n] or node.role is Role.BUFFER for n, node in enumerate(graph.nodes)]
    streams = [not held[e.source] and not memory[e.target] for e in graph.edges]
    part = components(graph, streams)
    level = [Fraction(0)] * len(graph.nodes)
    volume: dict[int, int] = {}
    height: dict[int, Fraction] = {}
    for n in graph.order:
        if memory[n]:
            continue
        below = max((level[u] for u in graph.predecessors(n)), default=Fraction(0))
        level[n] = below + max(graph.rate(n), Fraction(1))
        c = part[n]
        written = 0 if graph.nodes[n].role is Role.BUFFER else graph.produced[n]
        height[c] = max(height.get(c, Fraction(0)), level[n])
        volume[c] = max(volume.get(c, 0), graph.consumed[n], written)
    return max((_ceil(volume[c] + height[c]) for c in volume), default=0)


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
