"""A drawing of a task graph, with equal tasks in one box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tilewright.base.html import Markup, element
from tilewright.report.axes import LETTER, arrowhead
from tilewright.report.layered import Point, layout

_FILLS: Final = {
    "element-wise": "#d7e8f5",
    "downsampler": "#f7d9dc",
    "upsampler": "#d9f0dc",
    "buffer": "#f5e9c8",
}
_HEIGHT: Final = 34.0
_MARGIN: Final = 24.0
_HEAD: Final = "head"  # the arrowhead's name

Node = Mapping[str, Any]


def picture(graph: Mapping[str, Any]) -> str:
    """SVG of the result of `dataflow.text.to_json`: readers are in layers below their sources.

    An edge shows the elements that it carries; buffers are rounded, memory outside has no box. It
    is a standalone file with its own colors.
    """
    nodes: Sequence[Node] = graph["nodes"]
    index = {node["name"]: n for n, node in enumerate(nodes)}
    ends = [(index[e["from"]], index[e["to"]]) for e in graph["edges"]]
    sizes = [(_width(node), _HEIGHT) for node in nodes]
    found = layout(sizes, ends, gap=14, rise=30)
    said = f"{graph['name']}: elements on each edge, volume={graph['volume']}"
    wide = max(found.width, LETTER * len(said)) + 2 * _MARGIN
    size = {"width": float(wide), "height": float(found.height + 2 * _MARGIN)}
    lines = [
        _arrow(route, f"{edge[graph['volume']]:,}")
        for route, edge in zip(found.routes, graph["edges"], strict=True)
    ]
    boxes = [
        _box(node, place, width)
        for node, place, (width, _) in zip(nodes, found.places, sizes, strict=True)
    ]
    moved = element("g", *lines, *boxes, transform=f"translate({_MARGIN} {_MARGIN})")
    title = element("text", said, x=_MARGIN, y=_MARGIN - 8)
    paper = element("rect", fill="white", **size)
    return (
        element(
            "svg",
            arrowhead(_HEAD, fill="#999"),
            paper,
            title,
            moved,
            **size,
            font_family="sans-serif",
            font_size=11,
            xmlns="http://www.w3.org/2000/svg",
        )
        + "\n"
    )


def _label(node: Node) -> str:
    count = f" x{node['count']}" if node.get("count", 1) > 1 else ""
    return f"{node['name']}{count}"


def _width(node: Node) -> float:
    return LETTER * max(len(_label(node)), len(node["type"])) + 16


def _box(node: Node, place: Point, width: float) -> Markup:
    (middle, y), kind, label = place, str(node["type"]), _label(node)
    parts = [element("title", f"{label}: {kind} {node.get('origin', '')}")]
    if kind in _FILLS:
        frame = element(
            "rect",
            x=middle - width / 2,
            y=y,
            width=width,
            height=_HEIGHT,
            fill=_FILLS[kind],
            rx=12 if kind == "buffer" else 2,
            stroke="#777",
        )
        parts.append(frame)
    parts.append(element("text", label, x=middle, y=y + 14, text_anchor="middle"))
    parts.append(
        element("text", kind, x=middle, y=y + 28, text_anchor="middle", fill="#666")
    )
    return element("g", *parts)


def _arrow(route: Sequence[Point], carried: str) -> Markup:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in route)
    path = element(
        "polyline",
        points=points,
        fill="none",
        stroke="#999",
        marker_end=f"url(#{_HEAD})",
    )
    (x1, y1), (x2, y2) = route[0], route[1]
    said = element(
        "text",
        carried,
        x=(x1 + x2) / 2 + 4,
        y=(y1 + y2) / 2 + 3,
        font_size=9,
        fill="#777",
    )
    return element("g", path, said)
