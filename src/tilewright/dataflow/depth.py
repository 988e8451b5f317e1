"""Lower bounds on a makespan: the depths of a task graph, with and without streaming."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from tilewright.dataflow.baseline import upward_rank
from tilewright.dataflow.graph import Role, TaskGraph
from tilewright.dataflow.intervals import components

_MEMORY: Final = (Role.SOURCE, Role.SINK)


def critical_path(graph: TaskGraph) -> int:
    """Cycles of the longest chain of tasks if each waits for its complete inputs."""
    return max(upward_rank(graph), default=0)


def streaming_depth(graph: TaskGraph) -> int:
    """Cycles of a streaming schedule with unlimited processing elements.

    The level of a node is max(R, 1) above its highest predecessor, R being its rate. Without
    sources, sinks and the out-edges of buffers, the graph falls into components; the depth is the
    maximum over components of the largest stream volume plus the level of the last node. HPDC 2023
    (see `graph`).
    """
    component = components(graph, _between_tasks(graph))
    level = [Fraction(0)] * len(graph.nodes)
    volume: dict[int, int] = {}
    height: dict[int, Fraction] = {}
    for n in graph.order:
        role = graph.nodes[n].role
        if role in _MEMORY:
            continue
        below = [level[u] for u in graph.predecessors(n)]
        level[n] = max(below, default=Fraction(0))
        level[n] += max(graph.rate(n), Fraction(1))
        c = component[n]
        if role is Role.BUFFER:
            written = 0
        else:
            written = graph.produced[n]
        height[c] = max(height.get(c, Fraction(0)), level[n])
        volume[c] = max(volume.get(c, 0), graph.consumed[n], written)
    depths = (volume[c] + height[c] for c in volume)
    return max(map(math.ceil, depths), default=0)


def _between_tasks(graph: TaskGraph) -> list[bool]:
    """Which edges go from a task to a task or a buffer."""
    found = []
    for e in graph.edges:
        source = graph.nodes[e.source]
        target = graph.nodes[e.target]
        found.append(source.role is Role.COMPUTE and target.role not in _MEMORY)
    return found
