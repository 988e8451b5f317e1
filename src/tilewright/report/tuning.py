"""A tuning run as a self-contained HTML page: curves, common properties of the fastest,
failures."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from tilewright.base.text import plural

_WIDTH, _HEIGHT, _MARGIN = 360, 150, 36
_STYLE: Final = (
    "body{font:15px sans-serif;max-width:64em;margin:2em auto}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left}"
    "tr:nth-child(even){background:#f2f2f2}figure{display:inline-block;margin:.5em}"
)
_BEST: Final = 0.05  # of the trials of a kernel are its fastest, at least _FEWEST
_FEWEST: Final = 3
_REASONS: Final = 5  # of failures that are shown

Log = Sequence[tuple[str, float, Mapping[str, Any]]]  # kind, seconds, fields
Trial = Mapping[str, Any]


def page(found: Mapping[str, Any], log: Log) -> str:
    """The page for the result of `Tuned.to_dict` and the events of its run."""
    title = escape(f"Tuning {found['model']}")
    trials = [fields for kind, _, fields in log if kind == "trial"]
    by_task = {k["kernel"]: _of(k["kernel"], trials) for k in found["kernels"]}
    tuned = {name: mine for name, mine in by_task.items() if len(mine) > 1}
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>{title}</h1>",
            f"<p>{_summary(found)}</p>",
            "<h2>Kernels</h2>",
            _kernels(found["kernels"]),
            *_bounds(found),
            "<h2>The best so far, by trial</h2>",
            *(_curve(name, mine) for name, mine in tuned.items()),
            "<h2>What the fastest schedules have in common</h2>",
            _common(tuned),
            "<h2>Failures</h2>",
            _failures(trials),
            "<h2>Where the time went</h2>",
            _table(
                ("what", "seconds"),
                ((name, f"{s:.1f}") for name, s in found["spent"].items()),
            ),
            "</body></html>",
            "",
        ]
    )


def enriched(trials: Sequence[Trial]) -> list[tuple[str, str, float, float]]:
    """Parameter values that are more frequent in a kernel's fastest trials than in all.

    Name, value, and its share in the fastest and in all; the most significant first.
    """
    ok = sorted((t for t in trials if t["status"] == "ok"), key=lambda t: t["seconds"])
    count = max(_FEWEST, math.ceil(_BEST * len(ok)))
    if len(ok) < 2 * count:
        return []
    best, everything = (Counter(_values(part)) for part in (ok[:count], ok))
    found = []
    for (name, value), times in best.items():
        share, usual = times / count, everything[name, value] / len(ok)
        if share > usual and share >= 0.5 and usual < 1:
            found.append(
                (
                    name,
                    value,
                    share,
                    usual,
                )
            )
    return sorted(found, key=lambda row: row[3] - row[2])


def _values(trials: Iterable[Trial]) -> Iterable[tuple[str, str]]:
    for trial in trials:
        for name, value in json.loads(trial["candidate"]).items():
            yield name, json.dumps(value)


def _of(name: str, trials: Iterable[Trial]) -> list[Trial]:
    return [t for t in trials if t["task"] == name]


def _summary(found: Mapping[str, Any]) -> str:
    trials, seconds = found["trials"], found["seconds"]
    text = f"{plural(trials, 'trial')} in {seconds:.0f} s, {found['overhead']:.0%} of it overhead"
    if found["after_seconds"] is None:
        return f"{text}. No schedule that makes the model faster was found."
    before, after = found["before_seconds"], found["after_seconds"]
    times = f"{before * 1e3:.3f} ms before, {after * 1e3:.3f} ms after"
    return f"{text}. The model is {found['gain']:.3f} times as fast: {times}."


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> str:
    heading = (
        "kernel",
        "calls",
        "default",
        "best",
        "gain",
        "sure",
        "trials",
        "used",
    )
    rows = (
        (
            k["kernel"],
            str(k["calls"]),
            _micro(k["default_seconds"]),
            _micro(k["best_seconds"]),
            f"{k['gain']:.2f}",
            f"{k['confidence']:.0%}",
            str(k["trials"]),
            k["used"],
        )
        for k in kernels
    )
    return _table(heading, rows)


def _bounds(found: Mapping[str, Any]) -> list[str]:
    """The share of the roofline of each kernel, and what bounds the heavy ones that are far."""
    shares = [(k, k.get("roofline")) for k in found["kernels"]]
    rows = [
        (k["kernel"], f"{share:.0%}", k["bound"] if k["far"] else "")
        for k, share in sorted(shares, key=lambda row: -row[0]["best_seconds"])
        if share is not None
    ]
    if not rows:
        return []
    note = escape(found.get("peaks_note", ""))
    heading = ("kernel", "of the roofline", "bound by")
    return ["<h2>What bounds them</h2>", f"<p>{note}</p>", _table(heading, rows)]


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if math.isfinite(seconds) else "-"


def _curve(name: str, trials: Sequence[Trial]) -> str:
    """The best time after each trial, and a dot for each trial, as SVG."""
    ok = [(n, t["seconds"]) for n, t in enumerate(trials) if t["status"] == "ok"]
    if not ok:
        return ""
    least, most = min(s for _, s in ok), max(s for _, s in ok)
    # Slow trials say little: show times up to twice the best.
    top = max(min(most, 2 * least), least * 1.01)

    def x(n: int) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * n / max(1, len(trials) - 1)

    def y(seconds: float) -> float:
        share: float = (min(seconds, top) - least) / (top - least)
        return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * share

    line, best = [], math.inf
    for n, seconds in ok:
        best = min(best, seconds)
        line.append(f"{x(n):.1f},{y(best):.1f}")
    dots = (f'<circle cx="{x(n):.1f}" cy="{y(s):.1f}" r="1.5"/>' for n, s in ok)
    return "\n".join(
        [
            f'<figure><svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
            f'height="{_HEIGHT}" font-size="11" fill="#999">',
            *dots,
            f'<polyline points="{" ".join(line)}" fill="none" stroke="#06c"/>',
            f'<text x="2" y="{y(least):.0f}">{_micro(least)}</text>',
            f'<text x="2" y="{y(top):.0f}">{_micro(top)}</text>',
            f"</svg><figcaption>{escape(name)}</figcaption></figure>",
        ]
    )


def _common(tuned: Mapping[str, Sequence[Trial]]) -> str:
    rows = [
        (
            kernel,
            name,
            value,
            f"{share:.0%}",
            f"{usual:.0%}",
        )
        for kernel, trials in tuned.items()
        for name, value, share, usual in enriched(trials)
    ]
    if not rows:
        return "<p>Too few trials to tell.</p>"
    return _table(
        (
            "kernel",
            "parameter",
            "value",
            "of the fastest",
            "of all",
        ),
        rows,
    )


def _failures(trials: Sequence[Trial]) -> str:
    failed = [t for t in trials if t["status"] != "ok"]
    if not failed:
        return "<p>None.</p>"
    counted = Counter((t["status"], t["reason"]) for t in failed)
    per_status = Counter(t["status"] for t in failed)
    rows = [
        (
            status,
            str(count),
            reason,
        )
        for (status, reason), count in counted.most_common(_REASONS)
    ]
    listed = ", ".join(f"{count} {status}" for status, count in per_status.items())
    return f"<p>{listed}; the most frequent:</p>" + _table(
        (
            "status",
            "trials",
            "reason",
        ),
        rows,
    )


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<table>", _cells("th", heading)]
    lines += [_cells("td", row) for row in rows]
    return "\n".join([*lines, "</table>"])


def _cells(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"
