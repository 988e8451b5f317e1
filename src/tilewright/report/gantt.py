"""A schedule of a task graph as a Gantt chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

COLORS: Final = (
    "#1b6ca8",
    "#d1495b",
    "#2e933c",
    "#edae49",
    "#66417a",
    "#00798c",
    "#8d6a4f",
)
_WIDTH, _HEIGHT, _MARGIN = 900, 260, 50

Bar = Mapping[str, Any]


def gantt(schedule: Mapping[str, Any]) -> str:
    """SVG of what `to_json` of a schedule gives: cycles to the right, processing elements upwards.

    A bar is the tasks of a node; pointing at it shows which, how many and when. Operators share a
    color.
    """
    bars: Sequence[Bar] = schedule["bars"]
    colors = {
        origin: COLORS[n % len(COLORS)]
        for n, origin in enumerate(dict.fromkeys(_operator(b) for b in bars))
    }
    across = (_WIDTH - 2 * _MARGIN) / max(1, schedule["makespan"])
    up = (_HEIGHT - 2 * _MARGIN) / schedule["pes"]
    base = _HEIGHT - _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<path d="M{_MARGIN},{_MARGIN} V{base} H{_WIDTH - _MARGIN}" fill="none" stroke="#888"/>',
    ]
    for bar in bars:
        x, width = (
            _MARGIN + bar["start"] * across,
            (bar["last"] - bar["start"]) * across,
        )
        height = bar["elements"] * up
        y = base - bar["element"] * up - height
        times = f"cycles {bar['start']:,} to {bar['last']:,}"
        title = escape(f"{bar['name']}: {bar['tasks']} tasks, {times}")
        parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{height:.2f}" '
            f'fill="{colors[_operator(bar)]}" stroke="white" stroke-width="0.2">'
            f"<title>{title}</title></rect>"
        )
    parts += [
        f'<text x="{_MARGIN - 6}" y="{_MARGIN + 4}" text-anchor="end">{schedule["pes"]}</text>',
        f'<text x="{_WIDTH - _MARGIN}" y="{base + 16}" text-anchor="end">'
        f"{schedule['makespan']:,} cycles</text>",
        f'<text x="{_MARGIN}" y="{_MARGIN - 10}">'
        f"processing elements, volume={schedule['volume']}</text>",
        "</svg>",
    ]
    return "\n".join(parts)


def _operator(bar: Bar) -> str:
    """The operator that a bar's tasks came from: its origin without the loops."""
    return str(bar["origin"] or bar["name"]).split("/", 1)[0]
