"""An exploration as a self-contained HTML page with tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from tilewright.report.gantt import COLORS, gantt

_WIDTH, _HEIGHT, _MARGIN = 720, 240, 60
_LABEL: Final = 96  # characters of a combination that the legend shows
_STYLE: Final = (
    "body{font:15px sans-serif;max-width:60em;margin:2em auto}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right}"
    "tr:nth-child(even){background:#f2f2f2}"
)

Point = Mapping[str, Any]


def page(found: Mapping[str, Any], schedules: Sequence[Mapping[str, Any]]) -> str:
    """The page for what `Exploration.to_json` gives, with some schedules as their `to_json` gives
    them."""
    title = escape(
        f"{found['network']} on N processing elements, volume={found['volume']}"
    )
    how = "all combinations" if found["exact"] else "a search among the combinations"
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>{title}</h1>",
            f"<p>{len(found['points'])} schedules, {how}. Times are in cycles, the rest in "
            "elements.</p>",
            "<h2>Makespan</h2>",
            picture(found),
            "<h2>The best for each number of processing elements</h2>",
            _table([_best(found, int(pes)) for pes in found["bounds"]]),
            "<h2>The Pareto front of makespan, I/O, buffers and processing elements</h2>",
            _table(found["front"]),
            "<h2>Schedules of the best</h2>",
            *(
                f"<h3>{s['pes']} processing elements</h3>\n{gantt(s)}"
                for s in schedules
            ),
            "</body></html>",
            "",
        ]
    )


@dataclass(frozen=True)
class _Axes:
    """Processing elements to the right and cycles upwards, both logarithmic. top: of the plot."""

    pes: tuple[int, int]
    cycles: tuple[int, int]
    top: int

    @property
    def base(self) -> int:
        return self.top + _HEIGHT

    def x(self, pes: int) -> float:
        return _scaled(pes, self.pes, _MARGIN, _WIDTH - _MARGIN)

    def y(self, cycles: int) -> float:
        return _scaled(cycles, self.cycles, self.base, self.top)


def _scaled(value: int, ends: tuple[int, int], start: float, end: float) -> float:
    low, high, at = (math.log(v) for v in (*ends, value))
    return start if high == low else start + (at - low) / (high - low) * (end - start)


def picture(found: Mapping[str, Any]) -> str:
    """Makespan over processing elements as SVG: a line through the best, in a color for each
    combination that is best somewhere, a dot for every other point."""
    points: Sequence[Point] = found["points"]
    best = [_best(found, int(pes)) for pes in found["bounds"]]
    colors: dict[str, str] = {}
    for p in best:
        colors.setdefault(p["label"], COLORS[len(colors) % len(COLORS)])
    pes, cycles = ([p[key] for p in points] for key in ("pes", "makespan"))
    top = _MARGIN + 14 * len(colors)
    axes = _Axes((min(pes), max(pes)), (min(cycles), max(cycles)), top)
    height = axes.base + _MARGIN
    dots = dict.fromkeys(
        (f"{axes.x(p['pes']):.0f}", f"{axes.y(p['makespan']):.0f}") for p in points
    )
    line = " ".join(f"{axes.x(p['pes']):.1f},{axes.y(p['makespan']):.1f}" for p in best)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        *(f'<circle cx="{x}" cy="{y}" r="2" fill="#bbb"/>' for x, y in dots),
        f'<polyline points="{line}" fill="none" stroke="#444"/>',
        *(_mark(axes, p, colors[p["label"]]) for p in best),
        *(_legend(n, label, color) for n, (label, color) in enumerate(colors.items())),
        *(
            f'<text x="{axes.x(int(n)):.1f}" y="{axes.base + 30}" text-anchor="middle">{n}</text>'
            for n in found["bounds"]
        ),
        *(
            f'<text x="{_MARGIN - 6}" y="{axes.y(c):.1f}" text-anchor="end">{c:,}</text>'
            for c in axes.cycles
        ),
        f'<text x="{_WIDTH / 2}" y="{axes.base + 50}" text-anchor="middle">'
        f"cycles over processing elements, volume={found['volume']}</text>",
    ]
    return "\n".join([*parts, "</svg>"])


def _mark(axes: _Axes, p: Point, color: str) -> str:
    title = escape(f"{p['pes']}: {p['makespan']:,} cycles, {p['label']}")
    return (
        f'<circle cx="{axes.x(p["pes"]):.1f}" cy="{axes.y(p["makespan"]):.1f}" r="5" '
        f'fill="{color}"><title>{title}</title></circle>'
    )


def _legend(row: int, label: str, color: str) -> str:
    shown = label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"
    return (
        f'<text x="{_MARGIN}" y="{20 + 14 * row}" fill="{color}">{escape(shown)}</text>'
    )


def _best(found: Mapping[str, Any], pes: int) -> Point:
    mine = [p for p in found["points"] if p["pes"] == pes]
    return min(mine, key=lambda p: (p["makespan"], p["io"], p["buffers"]))


def _table(points: Sequence[Point]) -> str:
    heading = (
        "PEs",
        "makespan",
        "speedup",
        "used",
        "I/O",
        "buffers",
        "schedule",
        "expansions",
    )
    rows = [
        (
            str(p["pes"]),
            f"{p['makespan']:,}",
            f"{p['speedup']:.1f}",
            f"{p['utilization']:.0%}",
            f"{p['io']:,}",
            f"{p['buffers']:,}",
            p["method"],
            p["label"],
        )
        for p in points
    ]
    lines = [
        "<table>",
        "<tr>" + "".join(f"<th>{escape(h)}</th>" for h in heading) + "</tr>",
    ]
    lines += [
        "<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows
    ]
    return "\n".join([*lines, "</table>"])
