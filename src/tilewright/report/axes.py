"""Axes, ticks and labels of figures: SVG whose colors follow the page's light or dark mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.html import Attribute, Markup, element, join

COLORS: Final = 12  # `.c0` to `.c11` in the style sheet
LETTER: Final = 6.6  # pixels that a letter of a label takes, at most, at 11 pixels

Box = tuple[float, float, float, float]  # left, top, right, bottom


def figure(
    width: float, height: float, *parts: str, label: str, **more: Attribute
) -> Markup:
    """A drawing that shrinks to the page, with a description for screen readers."""
    box = f"0 0 {width:.0f} {height:.0f}"
    svg = element(
        "svg",
        *parts,
        viewBox=box,
        width=width,
        height=height,
        role="img",
        aria_label=label,
        xmlns="http://www.w3.org/2000/svg",
        **more,
    )
    return element("div", svg, class_="figure")


def label(
    x: float, y: float, text: str, anchor: str = "start", **more: Attribute
) -> Markup:
    """Text at a place."""
    return element("text", text, x=float(x), y=float(y), text_anchor=anchor, **more)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "grid") -> Markup:
    """A straight line."""
    ends = {"x1": float(x1), "y1": float(y1), "x2": float(x2), "y2": float(y2)}
    return element("line", class_=class_, **ends)


def bar(box: Box, color: int, title: str, **more: Attribute) -> Markup:
    """A rectangle in one of COLORS, with what pointing at it shows."""
    left, top, right, bottom = box
    size = {
        "width": float(max(right - left, 0.5)),
        "height": float(max(bottom - top, 0.5)),
    }
    said = element("title", title)
    more = {"class_": f"c{color % COLORS}", **more}
    return element("rect", said, x=float(left), y=float(top), **size, **more)


def arrowhead(name: str, **more: Attribute) -> Markup:
    """The definition of an arrow's head: `marker_end="url(#name)"` puts it on a line."""
    shape = element("path", d="M0,0 L8,4 L0,8 z", **more)
    size = {"refX": 8, "refY": 4, "markerWidth": 7, "markerHeight": 7}
    marker = element("marker", shape, id=name, viewBox="0 0 8 8", **size, orient="auto")
    return element("defs", marker)


def legend(entries: Sequence[tuple[str, int]]) -> Markup:
    """The name of each color, as a list that wraps between names."""

    def entry(name: str, color: int) -> Markup:
        sign = element("i", style=f"background:var(--c{color})", aria_hidden="true")
        return element("li", sign, name)

    return element("ul", *(entry(*e) for e in entries), class_="legend")


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """Values between two ends at places between two others; logarithmic if so asked."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value."""
        low, high, value = (
            (math.log(v) if self.log else v) for v in (self.low, self.high, value)
        )
        if high == low:
            return self.start
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values between the ends: powers of ten, or multiples of 1, 2 or 5 of one.

        A logarithmic axis with less than three powers of ten has their multiples, too.
        """
        if self.log:
            lowest = math.floor(math.log10(self.low))
            highest = math.floor(math.log10(self.high))
            factors = (1, 2, 5) if highest - lowest < 3 else (1,)
            powers = (10.0**n for n in range(lowest, highest + 1))
            round_ones = [f * p for p in powers for f in factors]
            found = [v for v in round_ones if self.low <= v <= self.high]
            return (
                found if len(factors) > 1 else found[:: max(1, -(-len(found) // most))]
            )
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step)
        count = int((self.high - first * step) / step + 1e-9)
        return [(first + n) * step for n in range(count + 1)]


def _round_step(least: float) -> float:
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


@dataclass
class LabelPlacer:
    """Places labels so that none covers another or a `taken` box; omits labels that do not fit."""

    bounds: Box
    taken: list[Box] = field(default_factory=list)

    def place(self, x: float, y: float, text: str, radius: float = 5.0) -> Markup:
        """A label next to a dot: the first of eight places that is free."""
        width, height = LETTER * len(text), 12.0
        for dx, dy in _AROUND:
            left = x - (width if dx < 0 else width / 2 if dx == 0 else 0)
            left += dx * (radius + 3)
            middle = y + dy * (radius + 8)
            box = left, middle - height / 2, left + width, middle + height / 2
            if _within(box, self.bounds) and not any(_meet(box, b) for b in self.taken):
                self.taken.append(box)
                return label(left, middle + 4, text)
        return join([])


_AROUND: Final[Sequence[tuple[int, int]]] = (
    (1, 0),
    (-1, 0),
    (0, -1),
    (0, 1),
    (1, -1),
    (-1, -1),
    (1, 1),
    (-1, 1),
)


def _within(a: Box, b: Box) -> bool:
    return a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
