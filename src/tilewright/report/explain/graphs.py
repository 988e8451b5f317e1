"""A model's graph as a drawing with whole labels, arrowheads, and boxes colored by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from tilewright.base.html import Markup, element
from tilewright.base.text import plural
from tilewright.report.axes import COLORS, LETTER, arrowhead
from tilewright.report.layered import Point, layout

_HEIGHT: Final = 36.0
_PAD: Final = 14.0
_MARGIN: Final = 16.0
_PLAIN: Final = COLORS - 1  # the gray of operators that are not among the most frequent

Facts = Mapping[str, Any]


def view(name: str, graph: Facts) -> Markup:
    """A frame with the drawing, its search field and its buttons."""
    tools = element(
        "div",
        element("input", type="search", placeholder="Find a node", aria_label="find"),
        element("output", ""),
        element("button", "+", type="button", data_act="in", aria_label="zoom in"),
        element("button", "−", type="button", data_act="out", aria_label="zoom out"),
        element("button", "Whole graph", type="button", data_act="fit"),
        element("span", "Drag to move; Ctrl and wheel to zoom; arrow keys, + − 0."),
        class_="tools soft",
    )
    said = f"{name}: {plural(len(graph['nodes']), 'node')}"
    frame = element(
        "div", drawing(name, graph), class_="pan", tabindex=0, aria_label=said
    )
    return element("div", tools, frame)


def drawing(name: str, graph: Facts) -> Markup:
    """The graph as SVG."""
    nodes, edges = graph["nodes"], graph["edges"]
    sizes = [(_width(node), _HEIGHT) for node in nodes]
    places = layout(sizes, [(source, target) for source, target, _ in edges])
    colors = _colors(nodes)
    head = f"head-{name}"
    lines = [
        _edge(route, said, f"url(#{head})")
        for route, (*_, said) in zip(places.routes, edges, strict=True)
    ]
    boxes = [
        _box(node, place, size[0], colors[node["op"]])
        for node, place, size in zip(nodes, places.places, sizes, strict=True)
    ]
    width, height = places.width + 2 * _MARGIN, places.height + 2 * _MARGIN
    box = f"{-_MARGIN} {-_MARGIN} {width:.0f} {height:.0f}"
    return element(
        "svg",
        arrowhead(head, class_=f"c{_PLAIN}"),
        *lines,
        *boxes,
        viewBox=box,
        role="img",
        aria_label=f"graph {name}",
        xmlns="http://www.w3.org/2000/svg",
    )


def _edge(route: Sequence[Point], said: str, head: str) -> Markup:
    title = element("title", said)
    return element("path", title, d=_curve(route), class_="edge", marker_end=head)


def _width(node: Facts) -> float:
    longest = max(len(node["op"]) * 1.08, len(node["name"]))
    return _PAD * 2 + LETTER * max(4, longest)


def _colors(nodes: Sequence[Facts]) -> dict[str, int]:
    """A color for each of the most frequent operators."""
    count: dict[str, int] = {}
    for node in nodes:
        count[node["op"]] = count.get(node["op"], 0) + 1
    often = sorted(count, key=lambda op: (-count[op], op))
    return {op: min(n, _PLAIN) for n, op in enumerate(often)}


def _box(node: Facts, place: Point, width: float, color: int) -> Markup:
    x, y = place[0] - width / 2, place[1]
    said = [f"{node['op']} {node['name']}", *node["types"]]
    said += [f"weight {w}" for w in node["weights"]]
    said += [f"{k} = {v}" for k, v in node["attributes"].items()]
    return element(
        "g",
        element("title", "\n".join(said)),
        element("rect", x=x, y=y, width=width, height=_HEIGHT, rx=5, class_="frame"),
        element("rect", x=x, y=y, width=5, height=_HEIGHT, rx=2, class_=f"c{color}"),
        element("text", node["op"], x=x + _PAD, y=y + 15, class_="op"),
        element("text", node["name"], x=x + _PAD, y=y + 29, class_="soft"),
        class_="box",
    )


def _curve(points: Sequence[Point]) -> str:
    """Straight through the layers, and an S from one to the next."""
    (x, y), *_ = points
    parts = [f"M{x:.0f},{y:.0f}"]
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2
        if abs(x1 - x2) < 1:
            parts.append(f"L{x2:.0f},{y2:.0f}")
        else:
            parts.append(
                f"C{x1:.0f},{middle:.0f} {x2:.0f},{middle:.0f} {x2:.0f},{y2:.0f}"
            )
    return " ".join(parts)
