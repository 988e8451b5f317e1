"""Programs on several machines as a figure: a group of bars for each program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from tilewright.base.dataclass import dataclass

COLORS: Final = (
    "#1b6ca8",
    "#d1495b",
    "#2e933c",
    "#edae49",
    "#66417a",
    "#00798c",
    "#8d6a4f",
)
_BAR: Final = 18
_GAP: Final = 26  # between groups
_HEIGHT: Final = 240
_LEFT, _TOP, _BOTTOM = 70, 50, 50

Measured = Mapping[str, Any]


@dataclass(frozen=True)
class _Scale:
    """Cycles upwards, logarithmic between two powers of ten."""

    low: int
    high: int

    @property
    def ticks(self) -> Sequence[int]:
        return [10**n for n in range(self.low, self.high + 1)]

    def height(self, cycles: int) -> float:
        """The height of a bar, in units of the drawing."""
        part = (math.log10(cycles) - self.low) / (self.high - self.low)
        return _HEIGHT * part


def picture(measured: Sequence[Measured]) -> str:
    """SVG of how many cycles each program takes on each machine.

    measured: one entry per bar, in order: program, machine, cycles (at least 1), utilization (a
    part of 1), energy (nJ). Pointing at a bar shows its figures.
    """
    programs = list(dict.fromkeys(m["program"] for m in measured))
    machines = list(dict.fromkeys(m["machine"] for m in measured))
    colors = dict(zip(machines, COLORS, strict=False))
    scale = _scale([m["cycles"] for m in measured])
    group = _BAR * len(machines) + _GAP
    width = _LEFT + group * len(programs)
    height = _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        *(_line(scale, tick, width) for tick in scale.ticks),
    ]
    for m in measured:
        place = programs.index(m["program"]) * group
        x = _LEFT + place + machines.index(m["machine"]) * _BAR
        parts.append(_bar(m, x, scale.height(m["cycles"]), colors[m["machine"]]))
    for n, program in enumerate(programs):
        middle = _LEFT + n * group + (group - _GAP) / 2
        parts.append(_text(middle, height - 28, "middle", program))
    for n, machine in enumerate(machines):
        parts.append(_text(_LEFT + 80 * n, 20, "start", machine, colors[machine]))
    label = "cycles of each program on each machine"
    parts.append(_text(width / 2, height - 8, "middle", label))
    return "\n".join([*parts, "</svg>", ""])


def _scale(cycles: Sequence[int]) -> _Scale:
    low = math.floor(math.log10(min(cycles)))
    return _Scale(low, max(low + 1, math.ceil(math.log10(max(cycles)))))


def _bar(m: Measured, x: float, height: float, color: str) -> str:
    used = f"{m['utilization']:.1%} used"
    figures = f"{m['cycles']:,} cycles, {used}, {m['energy']:,.0f} nJ"
    title = escape(f"{m['program']} on {m['machine']}: {figures}")
    return (
        f'<rect x="{x:.0f}" y="{_TOP + _HEIGHT - height:.1f}" width="{_BAR - 3}" '
        f'height="{height:.1f}" fill="{color}"><title>{title}</title></rect>'
    )


def _line(scale: _Scale, tick: int, width: float) -> str:
    y = _TOP + _HEIGHT - scale.height(tick)
    line = f'<path d="M{_LEFT - 6},{y:.1f} H{width}" stroke="#ddd"/>'
    return line + _text(_LEFT - 10, y + 4, "end", f"{tick:,}")


def _text(x: float, y: float, anchor: str, text: str, color: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">'
        f"{escape(text)}</text>"
    )
