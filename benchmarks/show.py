"""Measured rows as a table for the terminal and as a picture (SVG)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from rich.table import Table

from benchmarks.score import fastest, lead
from tilewright.cli.rounds import RoundTable


def number(value: float | None, form: str) -> str:
    """A number in the given format; a dash for None."""
    return "-" if value is None else format(value, form)


def table(rows: Sequence[RoundTable]) -> Table:
    """Milliseconds per engine, then our lead over the fastest peer, with its quartiles."""
    engines = list(dict.fromkeys(engine for row in rows for engine in row.engines))
    view = Table(
        title="Milliseconds per call (medians); lead = fastest peer / ours",
        expand=False,
    )
    for heading in ("what", "threads"):
        view.add_column(heading)
    for heading in (*engines, "lead", "quartiles", "error", "load s"):
        view.add_column(heading, justify="right")
    for row in rows:
        peer, ours = fastest(row), row.engines[0]
        cells = [row.network, str(row.threads)]
        for engine in engines:
            text = number(row.median(engine), ".3f")
            cells.append(f"[bold]{text}[/]" if engine == peer else text)
        ratios = sorted(row.ratios(peer)) if peer else []
        cells.append(number(lead(row), ".2f") if peer else "void")
        ends = (
            (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4])
            if ratios
            else None
        )
        cells.append(f"{ends[0]:.2f}-{ends[1]:.2f}" if ends else "-")
        cells.append(number(row.error.get(ours), ".1e"))
        cells.append(number(row.load_seconds.get(ours), ".2f"))
        view.add_row(*cells)
    return view


LINE, LEFT, WIDTH = 18, 240, 480
# The axis is logarithmic, from a quarter to four times the fastest peer's speed.
FARTHEST = 4.0


def _place(value: float) -> float:
    """Horizontal place of a ratio; beyond the ends of the axis, the end."""
    clamped = min(max(value, 1 / FARTHEST), FARTHEST)
    return LEFT + WIDTH * (0.5 + math.log(clamped) / math.log(FARTHEST) / 2)


def picture(rows: Sequence[RoundTable], title: str) -> str:
    """An SVG with a bar per row that is not void, from 1 (level) to our lead."""
    shown = [(row, value) for row in rows if (value := lead(row)) is not None]
    height = LINE * (len(shown) + 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="{LINE - 4}" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in (0.25, 0.5, 1.0, 2.0, 4.0):
        x = _place(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{1.5 * LINE}" y2="{height - LINE}" '
                     f'stroke="{"black" if tick == 1 else "#ccc"}"/>')  # fmt: skip
        parts.append(
            f'<text x="{x:.1f}" y="{height - 5}" text-anchor="middle">{tick:g}</text>'
        )
    for index, (row, value) in enumerate(shown):
        y, ends = LINE * (index + 2), sorted((_place(1.0), _place(value)))
        color = "#2a7" if value >= 1 else "#c53"
        parts.append(f'<text x="8" y="{y}">{escape(row.network)}, {row.threads}</text>')
        parts.append(f'<rect x="{ends[0]:.1f}" y="{y - 10}" width="{ends[1] - ends[0]:.1f}" '
                     f'height="12" fill="{color}"/>')  # fmt: skip
        parts.append(f'<text x="{ends[1] + 4:.1f}" y="{y}">{value:.2f}</text>')
    return "\n".join([*parts, "</svg>", ""])


def write_picture(rows: Sequence[RoundTable], path: Path) -> None:
    """Writes `picture`, saying how many rounds its medians are of."""
    rounds = statistics.median(
        [len(row.times.get(row.engines[0], [])) for row in rows] or [0]
    )
    title = f"Our speed over the fastest peer's (name, threads), medians of {rounds:g} rounds"
    path.write_text(picture(rows, title), encoding="utf-8")
