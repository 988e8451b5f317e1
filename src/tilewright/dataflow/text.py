"""Task graphs as text and as JSON, in both directions, and as DOT for Graphviz.

    graph fir volume=part
    source x
    element-wise scale
    downsampler sum  # fir/i
    sink y
    x -> scale: 1024
    scale -> sum: 1024
    sum -> y: 16 of 64

A line is a node, with its type under the graph's reading of volumes, its number of equal tasks
(`x576`, if not one) and after `#` its origin, or an edge with its volume: `of` is followed by the
size of the array it is a part of, `unique` by the number of elements without repetitions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tilewright.base.errors import InputError
from tilewright.dataflow.graph import Edge, Kind, Node, Role, TaskGraph

_HEAD: Final = re.compile(r"graph (\S+) volume=(\S+)")
_NODE: Final = re.compile(
    rf"({'|'.join(Kind)}) (\S+)(?: x(\d{{1,9}}))?(?:\s+#\s*(.*))?"
)
_EDGE: Final = re.compile(
    r"(\S+) -> (\S+): (\d{1,19})(?: of (\d{1,19}))?(?: unique (\d{1,19}))?"
)
_SHAPES: Final = {
    Role.COMPUTE: "box",
    Role.BUFFER: "cylinder",
    Role.SOURCE: "plaintext",
    Role.SINK: "plaintext",
}


def show(graph: TaskGraph) -> str:
    """The graph as text, which `parse` turns into an equal graph."""
    lines = [f"graph {graph.name} volume={graph.volume}"]
    for n, node in enumerate(graph.nodes):
        origin = f"  # {node.origin}" if node.origin else ""
        count = f" x{node.count}" if node.count > 1 else ""
        lines.append(f"{graph.kind(n)} {node.name}{count}{origin}")
    for e in graph.edges:
        source = graph.nodes[e.source].name
        target = graph.nodes[e.target].name
        array = f" of {e.array}" if e.array != e.part else ""
        unique = f" unique {e.unique}" if e.unique != e.part else ""
        lines.append(f"{source} -> {target}: {e.part}{array}{unique}")
    return "\n".join(lines) + "\n"


def parse(text: str) -> TaskGraph:
    """Parse and check the output of `show`.

    Raises InputError with the line for text that is neither a node nor an edge, for an edge with an
    unknown node and a node whose type does not follow from its volumes, and as TaskGraph does.
    """
    lines = [
        (n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()
    ]
    head = _HEAD.fullmatch(lines[0][1]) if lines else None
    if head is None:
        raise _error(1, "expected `graph NAME volume=part` or `volume=array`")
    nodes: list[Node] = []
    kinds: list[tuple[int, Kind]] = []
    edges: list[Edge] = []
    index: dict[str, int] = {}
    for number, line in lines[1:]:
        if found := _NODE.fullmatch(line):
            kind = Kind(found[1])
            index[found[2]] = len(nodes)
            kinds.append((number, kind))
            nodes.append(Node(found[2], kind.role, found[4] or "", int(found[3] or 1)))
        elif found := _EDGE.fullmatch(line):
            edges.append(_edge(number, found, index))
        else:
            raise _error(
                number,
                f"{line[:60]!r} is neither a node (`TYPE NAME`) nor an edge (`A -> B: N`)",
            )
    graph = TaskGraph(head[1], nodes, edges, head[2])
    for n, (number, kind) in enumerate(kinds):
        if graph.kind(n) is not kind:
            raise _error(
                number,
                f"{nodes[n].name} is declared {kind}, but reads {graph.consumed[n]} and writes "
                f"{graph.produced[n]}: {graph.kind(n)}",
            )
    return graph


def to_json(graph: TaskGraph) -> str:
    """The graph as JSON: its name and volume; nodes (name, type, origin, count); edges (from, to,
    part, array, unique)."""
    nodes = [
        {
            "name": node.name,
            "type": graph.kind(n),
            "origin": node.origin,
            "count": node.count,
        }
        for n, node in enumerate(graph.nodes)
    ]
    edges = [
        {
            "from": graph.nodes[e.source].name,
            "to": graph.nodes[e.target].name,
            "part": e.part,
            "array": e.array,
            "unique": e.unique,
        }
        for e in graph.edges
    ]
    whole = {"name": graph.name, "volume": graph.volume, "nodes": nodes, "edges": edges}
    return json.dumps(whole, indent=1)


def from_json(text: str) -> TaskGraph:
    """Parse and check the output of `to_json`. Raises InputError as `parse` does."""
    try:
        whole = json.loads(text)
        lines = [f"graph {whole['name']} volume={whole['volume']}"]
        lines += [_node_line(node) for node in whole["nodes"]]
        lines += [_edge_line(edge) for edge in whole["edges"]]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise InputError(
            f"not a task graph: {type(e).__name__} {e}",
            where="JSON",
            hint="an object with name, volume, nodes (name, type, origin, count), edges (from, to, "
            "part, array, unique)",
        ) from None
    return parse("\n".join(line.replace("\n", " ") for line in lines))


def to_dot(graph: TaskGraph) -> str:
    """The graph for Graphviz: boxes are tasks, cylinders are buffers."""
    title = json.dumps(f"{graph.name}, volume={graph.volume}")
    lines = [
        f"digraph {json.dumps(graph.name)} {{",
        f"  rankdir=LR; labelloc=t; label={title};",
    ]
    for n, node in enumerate(graph.nodes):
        count = f" x{node.count}" if node.count > 1 else ""
        label = json.dumps(f"{node.name}{count}\n{graph.kind(n)}")
        lines.append(f"  n{n} [label={label}, shape={_SHAPES[node.role]}];")
    for n, e in enumerate(graph.edges):
        lines.append(f"  n{e.source} -> n{e.target} [label={graph.volume_of(n)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _edge(number: int, found: re.Match[str], index: Mapping[str, int]) -> Edge:
    for name in (found[1], found[2]):
        if name not in index:
            raise _error(
                number, f"the edge names {name}, which is not a node declared above"
            )
    part = int(found[3])
    array = int(found[4] or part)
    return Edge(
        source=index[found[1]],
        target=index[found[2]],
        part=part,
        array=array,
        unique=int(found[5] or part),
    )


def _node_line(node: Mapping[str, Any]) -> str:
    if node.get("count", 1) != 1:
        count = f" x{node['count']}"
    else:
        count = ""
    return f"{node['type']} {node['name']}{count}  # {node.get('origin', '')}"


def _edge_line(edge: Mapping[str, Any]) -> str:
    part = edge["part"]
    array = edge.get("array", part)
    unique = edge.get("unique", part)
    return f"{edge['from']} -> {edge['to']}: {part} of {array} unique {unique}"


def _error(line: int, message: str) -> InputError:
    return InputError(
        message, where=f"task graph, line {line}", hint="see `TaskGraph`'s text form"
    )
