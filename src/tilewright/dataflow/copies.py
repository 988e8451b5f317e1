"""Nodes that stand for several equal tasks: separating them, or dividing them among blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.dataclass import dataclass
from tilewright.dataflow.blocks import TaskShare
from tilewright.dataflow.graph import Edge, Node, Role, TaskGraph


def expanded(graph: TaskGraph) -> TaskGraph:
    """The graph with a node per task: `mv` with 576 tasks becomes `mv[0]` to `mv[575]`."""
    if graph.tasks == sum(node.role is Role.COMPUTE for node in graph.nodes):
        return graph
    return _replaced(
        graph,
        [
            [node]
            if node.count == 1
            else [
                replace(node, name=f"{node.name}[{k}]", count=1)
                for k in range(node.count)
            ]
            for node in graph.nodes
        ],
    )


@dataclass(frozen=True, slots=True)
class Division:
    """A graph in which each node has one block: its number, -1 for sources and sinks.

    turns: the number of consecutive blocks with a node's tasks, each of which it has alone.
    """

    graph: TaskGraph
    block: Sequence[int]
    turns: Sequence[int]

    def members(self) -> list[list[int]]:
        """The nodes of each block in topological order, with a node's turns listed once."""
        found: dict[int, list[int]] = {}
        for n in self.graph.order:
            if self.block[n] >= 0:
                found.setdefault(self.block[n], []).append(n)
        return [found[b] for b in sorted(found)]


def divided(graph: TaskGraph, shares: Sequence[TaskShare]) -> Division:
    """`graph` with a node per share of a node's tasks: `mv` becomes `mv[0:16]`, and so on."""
    own: list[list[TaskShare]] = [[] for _ in graph.nodes]
    for share in sorted(shares, key=lambda s: (s.node, s.block)):
        mine = own[share.node]
        if mine and mine[-1].block == share.block:
            count = mine.pop().count + share.count
            share = TaskShare(share.node, share.block, count)
        mine.append(share)
    placed = [share for mine in own for share in mine or (_OUTSIDE,)]
    block = [share.block for share in placed]
    turns = [share.turns for share in placed]
    if all(len(mine) < 2 for mine in own):
        return Division(graph, block, turns)
    nodes = [_parts(node, mine) for node, mine in zip(graph.nodes, own, strict=True)]
    return Division(_replaced(graph, nodes), block, turns)


_OUTSIDE = TaskShare(-1, -1, 1)


def _parts(node: Node, shares: Sequence[TaskShare]) -> list[Node]:
    if len(shares) < 2:
        return [node]
    found = []
    begin = 0
    for share in shares:
        count = share.count * share.turns
        end = begin + count
        name = f"{node.name}[{begin}:{end}]"
        found.append(replace(node, name=name, count=count))
        begin = end
    return found


def _replaced(graph: TaskGraph, nodes: Sequence[Sequence[Node]]) -> TaskGraph:
    """Replace each node by several, each with all its edges."""
    ends = [0]
    for parts in nodes:
        ends.append(ends[-1] + len(parts))
    edges = [
        Edge(
            source=source,
            target=target,
            part=e.part,
            array=e.array,
            unique=e.unique,
        )
        for e in graph.edges
        for source in range(ends[e.source], ends[e.source + 1])
        for target in range(ends[e.target], ends[e.target + 1])
    ]
    return TaskGraph(
        graph.name, [n for parts in nodes for n in parts], edges, graph.volume
    )
