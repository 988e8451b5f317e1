"""An exploration as a self-contained HTML page with tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tilewright.base.html import Markup, element, join, table
from tilewright.base.text import plural
from tilewright.report.axes import COLORS, ChartAxis, figure, label, legend, line
from tilewright.report.gantt import gantt
from tilewright.report.shell import page as shell

_WIDTH: Final = 1000.0
_HEIGHT: Final = 340.0
_LEFT: Final = 90.0

Point = Mapping[str, Any]
Column = tuple[str, str, str]  # heading, key of a point, format of a number


def page(found: Mapping[str, Any], schedules: Sequence[Mapping[str, Any]]) -> str:
    """The page for the result of `Exploration.to_json`, with some schedules as JSON."""
    title = f"{found['network']} on N processing elements, volume={found['volume']}"
    how = "all combinations" if found["exact"] else "a search among the combinations"
    count = plural(len(found["points"]), "schedule")
    said = f"{count}, {how}. Times are in cycles, the rest in elements."
    best = [_best(found, int(pes)) for pes in found["bounds"]]
    charts = [
        join([element("h3", plural(s["pes"], "processing element")), gantt(s)])
        for s in schedules
    ]
    sections = [
        ("makespan", "Makespan", join([element("p", said), picture(found)])),
        ("best", "The best for each number of processing elements", _table(best)),
        ("front", "The Pareto front", _front(found["front"])),
        ("schedules", "Schedules of the best", join(charts)),
    ]
    return shell(title, sections)


def _front(points: Sequence[Point]) -> Markup:
    said = "What no other schedule beats in makespan, I/O, buffers and processing elements."
    find = element(
        "input",
        type="search",
        placeholder="Filter",
        data_for="front-rows",
        aria_label="filter the front",
    )
    tools = element("div", find, class_="tools")
    return join(
        [element("p", said, class_="soft"), tools, _table(points, "front-rows")]
    )


def picture(found: Mapping[str, Any]) -> Markup:
    """Makespan over processing elements as SVG: a line through the best, in a color for each
    combination that is best somewhere, a dot for every other point."""
    points: Sequence[Point] = found["points"]
    best = [_best(found, int(pes)) for pes in found["bounds"]]
    colors: dict[str, int] = {}
    for p in best:
        colors.setdefault(p["label"], len(colors) % COLORS)
    pes, cycles = ([p[key] for p in points] for key in ("pes", "makespan"))
    across = ChartAxis(min(pes), max(pes), _LEFT, _WIDTH - 20, log=True)
    upwards = ChartAxis(min(cycles), max(cycles), _HEIGHT - 46, 24, log=True)
    spots = dict.fromkeys(
        (round(across.at(p["pes"])), round(upwards.at(p["makespan"]))) for p in points
    )
    route = " ".join(
        f"{across.at(p['pes']):.1f},{upwards.at(p['makespan']):.1f}" for p in best
    )
    parts = [
        *_axes(across, upwards, [int(n) for n in found["bounds"]]),
        *(element("circle", cx=x, cy=y, r=2.5, class_="dot") for x, y in spots),
        element("polyline", points=route, class_="curve"),
        *(_mark(across, upwards, p, colors[p["label"]]) for p in best),
        label(_LEFT, 12, f"cycles, volume={found['volume']}", class_="soft"),
    ]
    said = f"Makespan of {plural(len(points), 'schedule')}"
    drawn = figure(_WIDTH, _HEIGHT, *parts, label=said)
    return join([drawn, legend(list(colors.items()))])


def _axes(across: ChartAxis, upwards: ChartAxis, pes: Sequence[int]) -> list[Markup]:
    parts = []
    # Decades alone would leave a narrow range without a number.
    for tick in sorted({*upwards.ticks(), upwards.low, upwards.high}):
        y = upwards.at(tick)
        parts.append(line(across.start, y, across.end, y))
        if tick in (upwards.low, upwards.high) or _apart(tick, upwards):
            parts.append(label(_LEFT - 8, y + 4, f"{tick:,.0f}", "end", class_="soft"))
    for n in pes:
        x = across.at(n)
        parts.append(line(x, upwards.end, x, upwards.start))
        parts.append(label(x, upwards.start + 18, str(n), "middle", class_="soft"))
    middle = (across.start + across.end) / 2
    said = "processing elements"
    parts.append(label(middle, upwards.start + 38, said, "middle", class_="soft"))
    return parts


def _apart(tick: float, axis: ChartAxis) -> bool:
    """Whether a tick's number does not collide with those at the ends."""
    return all(abs(axis.at(tick) - axis.at(end)) > 14 for end in (axis.low, axis.high))


def _mark(across: ChartAxis, upwards: ChartAxis, p: Point, color: int) -> Markup:
    title = element("title", f"{p['pes']}: {p['makespan']:,} cycles, {p['label']}")
    x, y = across.at(p["pes"]), upwards.at(p["makespan"])
    return element("circle", title, cx=x, cy=y, r=6, class_=f"c{color}")


def _best(found: Mapping[str, Any], pes: int) -> Point:
    mine = [p for p in found["points"] if p["pes"] == pes]
    return min(mine, key=lambda p: (p["makespan"], p["io"], p["buffers"]))


_COLUMNS: Final[Sequence[Column]] = (
    ("PEs", "pes", "d"),
    ("makespan", "makespan", ",d"),
    ("speedup", "speedup", ".1f"),
    ("used", "utilization", ".0%"),
    ("I/O", "io", ",d"),
    ("buffers", "buffers", ",d"),
    ("schedule", "method", "s"),
    ("expansions", "label", "s"),
)


def _table(points: Sequence[Point], name: str = "") -> Markup:
    rows = [[format(p[key], how) for _, key, how in _COLUMNS] for p in points]
    align = "".join("<" if how == "s" else ">" for *_, how in _COLUMNS)
    heading = [heading for heading, *_ in _COLUMNS]
    return table(heading, rows, align, name)
