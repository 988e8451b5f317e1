"""Error rates on a logarithmic scale as an SVG picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 60, 190, 20, 45
COLORS = ["#1f5fa8", "#c8502d", "#2f8f4e", "#7b4aa0"]
DASHES = ["none", "7 4", "2 4"]
Place = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """name: a family and a member of it. points: (SNR in dB, error rate)."""

    name: str
    points: list[tuple[float, float]]


def picture(curves: list[Curve]) -> str:
    """An SVG: a family has a dash of its own, a member a color. Rates of zero are left out."""
    shown = [[(x, math.log10(y)) for x, y in c.points if y > 0] for c in curves]
    xs, ys = zip(*(point for points in shown for point in points), strict=True)
    left, right, low, high = min(xs), max(xs), math.floor(min(ys)), math.ceil(max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        return across, TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = _grid(left, right, low, high, place)
    families = [name for name, _ in groupby(c.name.split()[0] for c in curves)]
    members = list(dict.fromkeys(c.name.split()[1] for c in curves))
    for n, (curve, points) in enumerate(zip(curves, shown, strict=True)):
        family, member = curve.name.split()
        color = COLORS[members.index(member) % len(COLORS)]
        dash = DASHES[families.index(family) % len(DASHES)]
        style = (
            f'fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"'
        )
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(*p) for p in points))
        at = TOP + 10 + 20 * n
        parts += [
            f'<polyline points="{line}" {style}/>',
            f'<line x1="{WIDTH - 175}" x2="{WIDTH - 140}" y1="{at}" y2="{at}" {style}/>',
            f'<text x="{WIDTH - 130}" y="{at + 4}">{curve.name}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def _grid(left: float, right: float, low: int, high: int, place: Place) -> list[str]:
    """The picture's beginning: background, axes, decades and every third dB."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for y in range(low, high + 1):
        (x0, at), (x1, _) = place(left, y), place(right, y)
        parts.append(f'<line x1="{x0}" x2="{x1}" y1="{at}" y2="{at}" stroke="#ddd"/>')
        parts.append(f'<text x="{x0 - 8}" y="{at + 4}" text-anchor="end">1e{y}</text>')
    for x in range(math.ceil(left), math.floor(right) + 1, 3):
        (at, y0), (_, y1) = place(x, low), place(x, high)
        parts.append(f'<line x1="{at}" x2="{at}" y1="{y0}" y2="{y1}" stroke="#ddd"/>')
        parts.append(f'<text x="{at}" y="{y0 + 16}" text-anchor="middle">{x}</text>')
    middle, _ = place((left + right) / 2, low)
    parts += [
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">SNR in dB</text>',
        f'<text x="{LEFT}" y="{TOP - 6}">bit error rate</text>',
    ]
    return parts
