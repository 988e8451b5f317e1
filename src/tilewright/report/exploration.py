"""An exploration as a page of HTML that needs nothing else: tables and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from tilewright.report.gantt import COLOURS, gantt

_WIDTH, _HEIGHT, _MARGIN = 640, 360, 60
_STYLE: Final = (
    "body{font:15px sans-serif;max-width:60em;margin:2em auto}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right}"
    "tr:nth-child(even){background:#f2f2f2}"
)

Point = Mapping[str, Any]


def page(found: Mapping[str, Any], schedules: Sequence[Mapping[str, Any]]) -> str:
    """The page for what `Exploration.to_json` gives, with some schedules as `Schedule.to_json`."""
    title = escape(f"{found['network']} on N processing elements, volume={found['volume']}")
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
            _table(found, [_best(found, int(pes)) for pes in found["bounds"]]),
            "<h2>The Pareto front of makespan, I/O, buffers and processing elements</h2>",
            _table(found, found["front"]),
            "<h2>Schedules of the best</h2>",
            *(f"<h3>{s['pes']} processing elements</h3>\n{gantt(s)}" for s in schedules),
            "</body></html>",
            "",
        ]
    )


def picture(found: Mapping[str, Any]) -> str:
    """Makespan over processing elements as SVG, both logarithmic: a line for each combination that
    is best somewhere, a dot for every other point."""
    points: Sequence[Point] = found["points"]
    xs = [math.log2(p["pes"]) for p in points]
    ys = [math.log10(p["makespan"]) for p in points]

    def place(p: Point) -> tuple[float, float]:
        x = _scaled(math.log2(p["pes"]), min(xs), max(xs), _MARGIN, _WIDTH - _MARGIN)
        y = _scaled(math.log10(p["makespan"]), min(ys), max(ys), _HEIGHT - _MARGIN, _MARGIN)
        return x, y

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
    ]
    dots = dict.fromkeys(tuple(f"{at:.0f}" for at in place(p)) for p in points)
    parts += [f'<circle cx="{x}" cy="{y}" r="2" fill="#bbb"/>' for x, y in dots]
    winners = dict.fromkeys(tuple(_best(found, int(n))["choice"]) for n in found["bounds"])
    for n, choice in enumerate(winners):
        line = [place(p) for p in points if tuple(p["choice"]) == choice]
        colour = COLOURS[n % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = escape(_label(found, choice)[:90])
        parts.append(f'<text x="{_MARGIN}" y="{16 + 14 * n}" fill="{colour}">{label}</text>')
    for pes in found["bounds"]:
        x = _scaled(math.log2(int(pes)), min(xs), max(xs), _MARGIN, _WIDTH - _MARGIN)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 30}" text-anchor="middle">{pes}</text>')
    for cycles in (min(p["makespan"] for p in points), max(p["makespan"] for p in points)):
        y = _scaled(math.log10(cycles), min(ys), max(ys), _HEIGHT - _MARGIN, _MARGIN)
        parts.append(f'<text x="{_MARGIN - 6}" y="{y:.1f}" text-anchor="end">{cycles:,}</text>')
    middle = _WIDTH / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">processing elements</text>'
    )
    return "\n".join([*parts, "</svg>"])


def _scaled(value: float, low: float, high: float, start: float, end: float) -> float:
    return start if high == low else start + (value - low) / (high - low) * (end - start)


def _best(found: Mapping[str, Any], pes: int) -> Point:
    mine = [p for p in found["points"] if p["pes"] == pes]
    return min(mine, key=lambda p: (p["makespan"], p["io"], p["buffers"]))


def _label(found: Mapping[str, Any], choice: Sequence[str]) -> str:
    chosen = zip(found["groups"], choice, strict=True)
    return " ".join(f"{g['stages'][0]}={name}" for g, name in chosen if len(g["options"]) > 1)


def _table(found: Mapping[str, Any], points: Sequence[Point]) -> str:
    heading = ("PEs", "makespan", "speedup", "used", "I/O", "buffers", "blocks by", "expansions")
    rows = [
        (
            str(p["pes"]),
            f"{p['makespan']:,}",
            f"{p['speedup']:.1f}",
            f"{p['utilisation']:.0%}",
            f"{p['io']:,}",
            f"{p['buffers']:,}",
            p["heuristic"],
            _label(found, p["choice"]),
        )
        for p in points
    ]
    lines = ["<table>", "<tr>" + "".join(f"<th>{escape(h)}</th>" for h in heading) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])
