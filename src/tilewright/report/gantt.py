"""A schedule of a task graph as a Gantt chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tilewright.base.html import Markup, join
from tilewright.base.text import plural
from tilewright.report.axes import (
    COLORS,
    LETTER,
    ChartAxis,
    bar,
    figure,
    label,
    legend,
    line,
)

_WIDTH: Final = 1000.0
_LEFT: Final = 60.0
_TOP: Final = 26.0
_ROWS: Final = 220.0

Bar = Mapping[str, Any]


def gantt(schedule: Mapping[str, Any]) -> Markup:
    """SVG of a schedule as JSON: cycles to the right, processing elements upwards.

    A bar is the tasks of a node; its tooltip shows their node, number and time. Bars of one
    operator share a color, which the legend names.
    """
    bars: Sequence[Bar] = schedule["bars"]
    colors = {
        origin: n % COLORS
        for n, origin in enumerate(dict.fromkeys(map(_operator, bars)))
    }
    across = ChartAxis(
        0,
        max(1, schedule["makespan"]),
        _LEFT,
        _WIDTH - 20,
    )
    upwards = ChartAxis(
        0,
        schedule["pes"],
        _TOP + _ROWS,
        _TOP,
    )
    parts = list(_axes(across, upwards))
    for b in bars:
        parts += _drawn(
            b,
            across,
            upwards,
            colors[_operator(b)],
        )
    said = f"processing elements, volume={schedule['volume']}"
    parts.append(
        label(
            _LEFT,
            14,
            said,
            class_="soft",
        )
    )
    height = _TOP + _ROWS + 44
    drawn = figure(
        _WIDTH,
        height,
        *parts,
        label=f"Schedule of {plural(len(bars), 'node')}",
    )
    return join([drawn, legend(list(colors.items()))])


def _axes(across: ChartAxis, upwards: ChartAxis) -> list[Markup]:
    parts = []
    for cycles in across.ticks(8):
        x = across.at(cycles)
        parts.append(
            line(
                x,
                upwards.end,
                x,
                upwards.start,
            )
        )
        shown = f"{cycles:,.0f}"
        parts.append(
            label(
                x,
                upwards.start + 16,
                shown,
                "middle",
                class_="soft",
            )
        )
    for pes in upwards.ticks(4):
        y = upwards.at(pes) + 4
        parts.append(
            label(
                _LEFT - 8,
                y,
                f"{pes:g}",
                "end",
                class_="soft",
            )
        )
    middle = (across.start + across.end) / 2
    said = f"cycles; the last task ends at {across.high:,}"
    parts.append(
        label(
            middle,
            upwards.start + 36,
            said,
            "middle",
            class_="soft",
        )
    )
    return parts


def _drawn(b: Bar, across: ChartAxis, upwards: ChartAxis, color: int) -> list[Markup]:
    """A bar, and its name if it fits."""
    left, right = across.at(b["start"]), across.at(b["last"])
    top, bottom = upwards.at(b["element"] + b["elements"]), upwards.at(b["element"])
    times = f"cycles {b['start']:,} to {b['last']:,}"
    title = f"{b['name']}: {plural(b['tasks'], 'task')}, {times}"
    found = [
        bar(
            (
                left,
                top,
                right,
                bottom,
            ),
            color,
            title,
        )
    ]
    name = _operator(b)
    if right - left > LETTER * len(name) + 6 and bottom - top > 13:
        middle = (left + right) / 2, (top + bottom) / 2 + 4
        found.append(
            label(
                *middle,
                name,
                "middle",
                class_="inside",
            )
        )
    return found


def _operator(b: Bar) -> str:
    """The operator that a bar's tasks came from: its origin without the loops."""
    return str(b["origin"] or b["name"]).split("/", 1)[0]
