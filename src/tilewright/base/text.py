"""Text layout: indenting, wrapping, aligning, and numbers in readable form."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P")
_SECONDS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


# Control characters, and those that turn the direction of text: a terminal acts on them.
_ACTING: Final = (
    *(n for n in range(32) if n not in (9, 10)), *range(127, 160),
    0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A),
)  # fmt: skip
_SHOWN: Final = {n: f"\\x{n:02x}" if n < 256 else f"\\u{n:04x}" for n in _ACTING}


def visible(text: str) -> str:
    """The text for a terminal: what would act on it, as names in models may, is shown escaped."""
    return text.translate(_SHOWN)


def indent(text: str, levels: int = 1, unit: str = "  ") -> str:
    """Every line that is not empty, moved right by ``levels`` times ``unit``."""
    prefix = unit * levels
    return "\n".join(prefix + line if line else line for line in text.split("\n"))


def wrap(
    items: Iterable[str],
    *,
    opening: str = "",
    closing: str = "",
    separator: str = ", ",
    width: int = 100,
    unit: str = "  ",
) -> str:
    """Join ``items`` between ``opening`` and ``closing``: on one line if it fits in ``width``,
    otherwise filled over indented lines, breaking between items only."""
    words = list(items)
    line = opening + separator.join(words) + closing
    if len(line) <= width and "\n" not in line:
        return line
    lines: list[str] = []
    current = ""
    for index, word in enumerate(words):
        piece = word if index == len(words) - 1 else word + separator
        if current and len(unit) + len(current) + len(piece.rstrip()) > width:
            lines.append(current.rstrip())
            current = ""
        current += piece
    lines.append(current)
    return "\n".join(
        [opening.rstrip(), *(indent(each, 1, unit) for each in lines), closing]
    )


def columns(rows: Sequence[Sequence[str]], align: str = "", gap: str = "  ") -> str:
    """Rows of cells as aligned text. ``align`` has ``<`` or ``>`` per column (left by default)."""
    count = max((len(row) for row in rows), default=0)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(count)]
    sides = align.ljust(count, "<")
    return "\n".join(
        gap.join(f"{cell:{sides[i]}{widths[i]}}" for i, cell in enumerate(row)).rstrip()
        for row in rows
    )


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """``1 node``, ``2 nodes``; ``nouns`` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def listing(items: Sequence[str], limit: int = 8) -> str:
    """``a, b, c`` for messages; beyond ``limit`` items it says how many more there are."""
    shown = ", ".join(items[:limit])
    more = len(items) - limit
    return f"{shown} and {more} more" if more > 0 else shown


def did_you_mean(name: object, known: Iterable[str]) -> str | None:
    """A hint for an unknown name: the nearest known one, else the known ones; None if none is."""
    names = list(known)
    near = nearest(name, names)
    if near is not None:
        return f"Did you mean {near!r}?"
    return f"Known: {listing(sorted(names), 12)}" if names else None


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that an unknown one looks like, whatever the case; None if there is none."""
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.65)
    return folded[near[0]] if near else None


def reason(error: Exception) -> str:
    """What an error says, without the number and the file that Python adds to the system's."""
    return getattr(error, "strerror", None) or str(error)


def human_bytes(size: float) -> str:
    """``1.5 KiB``: powers of 1024, three significant digits."""
    return _scaled(size, 1024.0, _BINARY)


def human_count(count: float, unit: str = "") -> str:
    """``1.23 M``, ``4.1 GFLOP``: powers of 1000, three significant digits."""
    return _scaled(count, 1000.0, tuple(prefix + unit for prefix in _DECIMAL))


def human_time(seconds: float) -> str:
    """``12.3 µs``, ``1.50 ms``, ``2 min 05 s``: three significant digits below a minute."""
    if seconds < 0:
        return "-" + human_time(-seconds)
    if seconds >= 59.95:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return (
            f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
        )
    for scale, unit in _SECONDS:
        # 0.9995 ms is shown as 1.00 ms, not as 1000 µs.
        if seconds >= 0.9995 * scale or unit == "ns":
            break
    return f"{_three_digits(seconds / scale)} {unit}"


def _scaled(value: float, base: float, units: Sequence[str]) -> str:
    if value < 0:
        return "-" + _scaled(-value, base, units)
    step = 0
    while value >= 0.9995 * base and step < len(units) - 1:
        value /= base
        step += 1
    text = f"{value:.0f}" if step == 0 and value == int(value) else _three_digits(value)
    return f"{text} {units[step]}".rstrip()


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
