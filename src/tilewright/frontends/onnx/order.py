"""Topological order of nodes, and the error for graphs without one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from tilewright.base.errors import ModelError


def reads(node: Any) -> Iterator[str]:
    """The names a node needs: its inputs, and those that its subgraphs capture."""
    for name in node.input:
        if name:
            yield name
    for a in node.attribute:
        if a.HasField("g"):
            yield from captured(a.g)
        for g in a.graphs:
            yield from captured(g)


def captured(graph: Any) -> Iterator[str]:
    """The names a subgraph reads but does not define."""
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {t.values.name for t in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in own)
    yield from (o.name for o in graph.output if o.name not in own)


def check_text(graph: Any) -> None:
    """Raise ModelError for a name that is not UTF-8 (protobuf returns bytes then)."""
    for node in graph.node:
        names = (node.op_type, node.domain, node.name, *node.input, *node.output)
        names += tuple(a.name for a in node.attribute)
        if not all(isinstance(n, str) for n in names):
            raise ModelError(
                "a name in it is not UTF-8 text", where=f"node {node.name!r}"
            )
        for a in node.attribute:
            for inner in (a.g, *a.graphs) if a.HasField("g") else a.graphs:
                check_text(inner)
    if hasattr(graph, "initializer"):
        infos = (*graph.input, *graph.output, *graph.initializer)
        if not all(isinstance(i.name, str) for i in infos):
            raise ModelError(
                "the name of an input, output or initializer is not UTF-8 text"
            )


def ordered(
    nodes: Sequence[Any], sees: Callable[[str], bool], own: Container[str], where: str
) -> list[Any]:
    """The nodes sorted topologically, keeping the given order as far as possible.

    sees: whether a name is defined before all of them. own: the names already defined in the same
    scope. Raises ModelError naming the node for an undefined name, a duplicate definition, or a
    cycle.
    """
    nodes = list(nodes)
    writer: dict[str, int] = {}
    for n, node in enumerate(nodes):
        for name in node.output:
            if name in own:
                raise ModelError(
                    f"node {_name(node)!r} writes {name!r}, which is already defined",
                    where=where,
                )
            if name and writer.setdefault(name, n) != n:
                raise ModelError(
                    f"nodes {_name(nodes[writer[name]])!r} and {_name(node)!r} both write {name!r}",
                    where=where,
                )
    needs: list[set[int]] = []
    for node in nodes:
        mine = set()
        for name in reads(node):
            if name in writer:
                mine.add(writer[name])
            elif not sees(name):
                raise ModelError(
                    f"node {_name(node)!r} ({node.op_type}) reads {name!r}, which nothing defines",
                    where=where,
                )
        needs.append(mine)
    if all(m < n for n, mine in enumerate(needs) for m in mine):
        return nodes
    return _sorted(nodes, needs, where)


def _sorted(nodes: list[Any], needs: list[set[int]], where: str) -> list[Any]:
    readers: list[list[int]] = [[] for _ in nodes]
    for n, mine in enumerate(needs):
        for m in mine:
            readers[m].append(n)
    left = [len(mine) for mine in needs]
    ready = [n for n, count in enumerate(left) if count == 0]
    done: list[Any] = []
    while ready:
        n = heapq.heappop(ready)
        done.append(nodes[n])
        for reader in readers[n]:
            left[reader] -= 1
            if left[reader] == 0:
                heapq.heappush(ready, reader)
    if len(done) < len(nodes):
        names = [
            _name(nodes[n]) for n in _cycle(needs, [n for n, c in enumerate(left) if c])
        ]
        shown = names[:6] + (["..."] if len(names) > 6 else []) + names[:1]
        raise ModelError(
            f"the nodes depend on each other in a cycle: {' -> '.join(shown)}",
            where=where,
        )
    return done


def _cycle(needs: list[set[int]], stuck: list[int]) -> list[int]:
    """Follow dependencies among the nodes that never became ready, until one repeats."""
    waiting = set(stuck)
    path = [stuck[0]]
    place = {stuck[0]: 0}
    while True:
        step = next(m for m in sorted(needs[path[-1]]) if m in waiting)
        if step in place:
            return path[place[step] :]
        place[step] = len(path)
        path.append(step)


def _name(node: Any) -> str:
    return node.name or f"{node.op_type} -> {next(iter(node.output), '?')}"
