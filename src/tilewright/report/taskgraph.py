"""A drawing of a task graph, with equal tasks in one box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

_FILLS: Final = {
    "element-wise": "#d7e8f5",
    "downsampler": "#f7d9dc",
    "upsampler": "#d9f0dc",
    "buffer": "#f5e9c8",
}
_BOX, _HEIGHT, _GAP, _LAYER, _MARGIN = 150, 34, 14, 62, 24

Node = Mapping[str, Any]


def picture(graph: Mapping[str, Any]) -> str:
    """SVG of what `dataflow.text.to_json` holds: a layer below another that it reads from.

    An edge shows the elements that it carries; buffers are rounded, memory outside has no box.
    """
    nodes: Sequence[Node] = graph["nodes"]
    index = {node["name"]: n for n, node in enumerate(nodes)}
    ends = [(index[e["from"]], index[e["to"]]) for e in graph["edges"]]
    layers = _layers(len(nodes), ends)
    places = _places(layers, ends)
    width = max(x for x, _ in places) + _BOX + _MARGIN
    height = max(y for _, y in places) + _HEIGHT + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        'font-family="sans-serif" font-size="11">'
    ]
    for (source, target), edge in zip(ends, graph["edges"], strict=True):
        parts.append(_arrow(places[source], places[target], edge, graph["volume"]))
    parts.append(
        f'<text x="{_MARGIN}" y="{_MARGIN - 6}">'
        f"{escape(graph['name'])}: elements on each edge, volume={graph['volume']}</text>"
    )
    parts += [_box(node, *place) for node, place in zip(nodes, places, strict=True)]
    return "\n".join([*parts, "</svg>", ""])


def _layers(count: int, ends: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The nodes by the length of the longest way to them; what reads nothing sits right above its
    first reader."""
    below: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in ends:
        below[source].append(target)
        missing[target] += 1
    depth = [0] * count
    order = [n for n in range(count) if not missing[n]]
    roots = list(order)
    for n in order:
        for m in below[n]:
            depth[m] = max(depth[m], depth[n] + 1)
            missing[m] -= 1
            if not missing[m]:
                order.append(m)
    for n in roots:
        depth[n] = max(0, min((depth[m] for m in below[n]), default=1) - 1)
    layers: list[list[int]] = [[] for _ in range(max(depth, default=0) + 1)]
    for n in order:
        layers[depth[n]].append(n)
    return layers


def _places(
    layers: Sequence[Sequence[int]], ends: Sequence[tuple[int, int]]
) -> list[tuple[float, float]]:
    """The upper left corner of each box; layers are centered, in the order of their sources."""
    above: dict[int, list[int]] = {}
    for source, target in ends:
        above.setdefault(target, []).append(source)
    widest = max(len(layer) for layer in layers)
    places: dict[int, tuple[float, float]] = {}
    for row, layer in enumerate(layers):
        wanted = {
            n: sum(places[u][0] for u in placed) / len(placed) if placed else 0.0
            for n in layer
            for placed in [[u for u in above.get(n, ()) if u in places]]
        }
        left = _MARGIN + (widest - len(layer)) * (_BOX + _GAP) / 2
        for column, n in enumerate(sorted(layer, key=wanted.__getitem__)):
            places[n] = left + column * (_BOX + _GAP), _MARGIN + row * _LAYER
    return [places[n] for n in range(len(places))]


def _box(node: Node, x: float, y: float) -> str:
    count = f" x{node['count']}" if node.get("count", 1) > 1 else ""
    label = str(node["name"])
    shown = label if len(label) <= 22 else f"…{label[-21:]}"
    kind = str(node["type"])
    frame = (
        f'<rect x="{x:.1f}" y="{y}" width="{_BOX}" height="{_HEIGHT}" fill="{_FILLS[kind]}" '
        f'rx="{12 if kind == "buffer" else 2}" stroke="#777"/>'
        if kind in _FILLS
        else ""
    )
    middle = x + _BOX / 2
    title = escape(f"{label}{count}: {kind} {node.get('origin', '')}")
    return (
        f"<g><title>{title}</title>{frame}"
        f'<text x="{middle:.1f}" y="{y + 14}" text-anchor="middle">{escape(shown + count)}</text>'
        f'<text x="{middle:.1f}" y="{y + 28}" text-anchor="middle" fill="#666">{kind}</text></g>'
    )


def _arrow(
    source: tuple[float, float],
    target: tuple[float, float],
    edge: Mapping[str, Any],
    volume: str,
) -> str:
    x1, y1 = source[0] + _BOX / 2, source[1] + _HEIGHT
    x2, y2 = target[0] + _BOX / 2, target[1]
    bend = (y1 + y2) / 2
    return (
        f'<path d="M{x1:.1f},{y1} C{x1:.1f},{bend} {x2:.1f},{bend} {x2:.1f},{y2}" fill="none" '
        f'stroke="#999"/><text x="{(x1 + x2) / 2 + 3:.1f}" y="{bend + 4}" font-size="9" '
        f'fill="#888">{edge[volume]:,}</text>'
    )
