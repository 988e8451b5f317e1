"""Figures of a report: the time line, memory over time, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tilewright.base.html import Markup, element
from tilewright.base.text import human_bytes, human_time, plural
from tilewright.report.axes import (
    LETTER,
    ChartAxis,
    LabelPlacer,
    bar,
    figure,
    label,
    line,
)

_WIDTH: Final = 1120.0
_LEFT: Final = 70.0
_RIGHT: Final = 16.0

Facts = Mapping[str, Any]


def timeline(kernels: Sequence[Facts], total: float) -> Markup:
    """Kernels one after another, each as wide as its median time; the rest is between them."""
    axis = ChartAxis(0.0, max(total, 1e-12), 8.0, _WIDTH - _RIGHT)
    top, bottom = 16.0, 62.0
    parts, at = [], 0.0
    for n, k in enumerate(kernels):
        end = at + k["seconds"]
        title = f"{k['name']}: {human_time(k['seconds'])}, {k['share']:.1%}"
        box = axis.at(at), top, axis.at(end), bottom
        parts.append(_linked(n, bar(box, n, title)))
        parts += _inside(box, k["name"])
        at = end
    if total > at:
        said = f"between kernels: {human_time(total - at)}"
        rest = axis.at(at), top, axis.at(total), bottom
        parts.append(bar(rest, 7, said, fill_opacity=0.35))
    for tick in axis.ticks(8):
        parts.append(line(axis.at(tick), bottom, axis.at(tick), bottom + 5, "axis"))
        text = human_time(tick) if tick else "0"
        parts.append(label(axis.at(tick), bottom + 18, text, "middle", class_="soft"))
    said = f"{plural(len(kernels), 'kernel')} in {human_time(total)}"
    return figure(_WIDTH, bottom + 26, *parts, label=f"Time line: {said}")


def memory(arena: Facts) -> Markup:
    """Buffers as rectangles: steps to the right, bytes of the arena upwards."""
    steps, buffers = arena["steps"], arena["buffers"]
    if not buffers:
        return element("p", "Nothing is kept between kernels.", class_="empty")
    height = 330.0
    across = ChartAxis(0, len(steps), _LEFT, _WIDTH - _RIGHT)
    upwards = ChartAxis(0, arena["bytes"], height - 34, 12)
    parts = []
    unit = 1024 ** int(math.log(max(arena["bytes"], 1), 1024))
    for tick in ChartAxis(0, arena["bytes"] / unit, 0, 1).ticks(5):
        y = upwards.at(tick * unit)
        parts.append(line(_LEFT, y, _WIDTH - _RIGHT, y))
        said = human_bytes(tick * unit)
        parts.append(label(_LEFT - 8, y + 4, said, "end", class_="soft"))
    for n, b in enumerate(buffers):
        box = (
            across.at(b["first"]),
            upwards.at(b["offset"] + b["bytes"]),
            across.at(b["last"] + 1),
            upwards.at(b["offset"]),
        )
        life = f"steps {b['first']} to {b['last']}"
        said = f"{b['name']}: {b['type']}, {human_bytes(b['bytes'])}, {life}"
        parts.append(bar(box, n % 7, said))
        parts += _inside(box, b["name"])
    for tick in across.ticks(12):
        x = across.at(tick)
        parts.append(label(x, height - 16, f"{tick:g}", "middle", class_="soft"))
    middle = (_LEFT + _WIDTH) / 2
    parts.append(label(middle, height - 2, "step of the plan", "middle", class_="soft"))
    return figure(
        _WIDTH,
        height,
        *parts,
        label=f"Memory of {plural(len(buffers), 'buffer')} over the steps",
    )


def roofline(kernels: Sequence[Facts], machine: Facts) -> Markup:
    """Arithmetic intensity to the right, GFLOP/s upwards, both logarithmic; labels do not
    overlap."""
    shown = [
        (n, k, k["flops"] / k["bytes"])
        for n, k in enumerate(kernels)
        if k["flops"] and k["bytes"] and k["seconds"] > 0
    ]
    if not shown:
        return element("p", "No kernel counts operations.", class_="empty")
    peak, stream = machine.get("gflops"), machine.get("gbs")
    height = 420.0
    low = min(i for *_, i in shown) / 2
    high = max(i for *_, i in shown) * 3
    if peak and stream:
        low, high = min(low, peak / stream / 4), max(high, peak / stream * 4)
    rates = [k["gflops"] for _, k, _ in shown] + ([peak] if peak else [])
    across = ChartAxis(low, high, _LEFT, _WIDTH - _RIGHT, log=True)
    upwards = ChartAxis(min(rates) / 2, max(rates) * 1.6, height - 40, 14, log=True)
    parts = _grid(across, upwards, height)
    labels = LabelPlacer((_LEFT, 8, _WIDTH - _RIGHT, height - 42))
    if peak and stream:
        parts.append(_roof(across, upwards, peak, stream))
        said = f"{peak:.0f} GFLOP/s"
        x = across.at(high) - 4
        parts.append(label(x, upwards.at(peak) - 6, said, "end", class_="soft"))
        labels.taken.append((x - 100, upwards.at(peak) - 20, x, upwards.at(peak)))
    for n, k, intensity in shown:
        x, y = across.at(intensity), upwards.at(max(k["gflops"], upwards.low))
        r = _radius(k)
        labels.taken.append((x - r, y - r, x + r, y + r))
        rate = f"{k['gflops']:.1f} GFLOP/s, {k['gbs']:.1f} GB/s"
        said = f"{k['name']}: {rate}, {intensity:.2f} FLOP/byte"
        dot = element(
            "circle",
            element("title", said),
            cx=x,
            cy=y,
            r=r,
            class_=f"c{n % 7}",
            fill_opacity=0.8,
            data_kernel=n,
        )
        parts.append(_linked(n, dot))
    slowest = sorted(shown, key=lambda s: -s[1]["seconds"])
    for _, k, intensity in slowest:
        x, y = across.at(intensity), upwards.at(max(k["gflops"], upwards.low))
        parts.append(labels.place(x, y, k["name"], _radius(k)))
    return figure(
        _WIDTH, height, *parts, label=f"Roofline of {plural(len(shown), 'kernel')}"
    )


def _grid(across: ChartAxis, upwards: ChartAxis, height: float) -> list[Markup]:
    parts = []
    for tick in upwards.ticks():
        y = upwards.at(tick)
        parts += [line(_LEFT, y, _WIDTH - _RIGHT, y)]
        parts += [label(_LEFT - 8, y + 4, f"{tick:g}", "end", class_="soft")]
    for tick in across.ticks():
        x = across.at(tick)
        parts += [line(x, 14, x, height - 40)]
        parts += [label(x, height - 24, f"{tick:g}", "middle", class_="soft")]
    middle = (_LEFT + _WIDTH) / 2
    said = "operations per byte that is read or written (FLOP/byte)"
    parts.append(label(middle, height - 6, said, "middle", class_="soft"))
    parts.append(label(_LEFT - 8, 10, "GFLOP/s", "end", class_="soft"))
    return parts


def _roof(across: ChartAxis, upwards: ChartAxis, peak: float, stream: float) -> Markup:
    """The roofline: the memory bound up to the arithmetic peak."""
    ridge = peak / stream
    start = max(across.low, upwards.low / stream)
    points = [(start, start * stream), (ridge, peak), (across.high, peak)]
    text = " ".join(f"{across.at(x):.1f},{upwards.at(y):.1f}" for x, y in points)
    return element("polyline", points=text, class_="roof")


def _linked(n: int, shape: Markup) -> Markup:
    return element("a", shape, href=f"#k{n}", aria_label=f"kernel {n}")


def _inside(box: tuple[float, float, float, float], name: str) -> list[Markup]:
    """The name in the middle of a rectangle that has room for all of it."""
    left, top, right, bottom = box
    if right - left < LETTER * len(name) + 6 or bottom - top < 14:
        return []
    middle = (left + right) / 2, (top + bottom) / 2 + 4
    return [label(*middle, name, "middle", class_="inside")]


def _radius(k: Facts) -> float:
    """The radius of a kernel's dot: its area is the share of the time, with a lower limit."""
    share: float = k["share"]
    return 4 + 10 * math.sqrt(share)
