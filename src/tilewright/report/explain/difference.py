"""The difference of two reports: kernels added, removed, or with another time or schedule."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tilewright.base.errors import InputError
from tilewright.base.html import Markup, element, join, table
from tilewright.base.text import columns, human_time, plural
from tilewright.report.explain.facts import FORMAT
from tilewright.report.shell import page as shell

Facts = Mapping[str, Any]

_DATA: Final = re.compile(
    r'<script type="application/json" id="facts">(.*?)</script>', re.DOTALL
)
_NOISE: Final = 0.05  # of a time: a smaller change is not called one
_APART: Final = "The machines or their threads differ: times do not compare."


def read(path: Path) -> dict[str, Any]:
    """The facts in a report's page. Raises InputError for another file, and OSError."""
    found = _DATA.search(path.read_text("utf-8", errors="replace"))
    try:
        facts = json.loads(found[1]) if found else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or "kernels" not in facts:
        raise InputError(
            "this is not a report",
            where=str(path),
            hint="give a page that `tilewright explain MODEL -o FILE.html` wrote",
        )
    if facts.get("format") != FORMAT:
        raise InputError(
            f"the report has format {facts.get('format')!r}, this version reads {FORMAT}",
            where=str(path),
            hint="write it again with this version",
        )
    return facts


def compared(old: Facts, new: Facts) -> dict[str, Any]:
    """Both models with their times, and a row per kernel, by its name; equal names in order.

    `between` is the row of the time between kernels. Times of two machines have no ratio.
    """
    ends = {
        side: {"model": f["model"], "seconds": f["summary"]["seconds"]}
        for side, f in (("old", old), ("new", new))
    }
    same = old["machine"]["processor"] == new["machine"]["processor"]
    same = same and old["machine"]["threads"] == new["machine"]["threads"]
    rows = [
        _row(name, before, after, same)
        for name, before, after in _pairs(old["kernels"], new["kernels"])
    ]
    before, after = ({"seconds": f["summary"]["between_seconds"]} for f in (old, new))
    between = _row("between kernels", before, after, same)
    return {**ends, "same_machine": same, "kernels": rows, "between": between}


def _pairs(
    old: Sequence[Facts], new: Sequence[Facts]
) -> list[tuple[str, Facts | None, Facts | None]]:
    waiting: dict[str, list[Facts]] = {}
    for k in old:
        waiting.setdefault(k["name"], []).append(k)
    found: list[tuple[str, Facts | None, Facts | None]] = []
    for k in new:
        before = waiting.get(k["name"], [])
        found.append((k["name"], before.pop(0) if before else None, k))
    gone = (k for kernels in waiting.values() for k in kernels)
    return [*found, *((k["name"], k, None) for k in gone)]


def _row(name: str, old: Facts | None, new: Facts | None, same: bool) -> dict[str, Any]:
    """same: whether the times are of one machine."""
    if old is None or new is None:
        said = "new" if old is None else "gone"
        changes = [said]
    else:
        changes = _changes(old, new)
    seconds = [None if k is None else k["seconds"] for k in (old, new)]
    before, after = seconds
    ratio = before / after if same and before and after else None
    return {
        "name": name,
        "old_seconds": before,
        "new_seconds": after,
        "speedup": ratio,
        "changes": changes,
    }


def _changes(old: Facts, new: Facts) -> list[str]:
    """The differences of a kernel's schedule."""
    if old.get("sketch") != new.get("sketch"):
        return [f"{old.get('sketch', old['kind'])} → {new.get('sketch', new['kind'])}"]
    before, after = (
        {name: value for name, value, *_ in k.get("parameters", ())} for k in (old, new)
    )
    names = dict.fromkeys((*before, *after))
    return [
        f"{n}: {before.get(n, 'none')} → {after.get(n, 'none')}"
        for n in names
        if before.get(n) != after.get(n)
    ]


def text(found: Facts) -> str:
    """The rows that changed, as a table of text, under the times of both."""
    rows = [
        [r["name"], *map(_time, _both(r)), _times(r), ", ".join(r["changes"])]
        for r in _changed(found)
    ]
    heading = ["kernel", "old", "new", "speedup", "schedule"]
    listed = columns([heading, *rows], "<>>><") if rows else "no kernel changed"
    said = "" if found["same_machine"] else f"\n{_APART}"
    return f"{listed}\n\n{_whole(found)}{said}"


def page(found: Facts) -> str:
    """The page of a comparison alone."""
    title = f"{found['old']['model']} and {found['new']['model']}: what changed"
    return shell(title, [("difference", "Difference", section(found))])


def section(found: Facts) -> Markup:
    """Both times, the kernels that changed, and all others."""
    heading = ("kernel", "old", "new", "speedup", "schedule")
    changed = _changed(found)
    rest = [r for r in found["kernels"] if r not in changed]
    parts = [element("p", _whole(found))]
    if not found["same_machine"]:
        parts.append(element("p", _APART, class_="worse"))
    parts.append(
        table(heading, map(_cells, changed), "<>>><")
        if changed
        else element("p", "No kernel changed.", class_="empty")
    )
    others = element("summary", f"{plural(len(rest), 'kernel')} as before")
    parts.append(element("details", others, table(heading, map(_cells, rest), "<>>><")))
    return join(parts)


def _cells(r: Facts) -> list[str]:
    speed = r["speedup"]
    side = None
    if speed is not None and abs(speed - 1) > _NOISE:
        side = "better" if speed > 1 else "worse"
    return [
        r["name"],
        _time(r["old_seconds"]),
        _time(r["new_seconds"]),
        element("span", _times(r), class_=side),
        ", ".join(r["changes"]),
    ]


def _changed(found: Facts) -> list[Facts]:
    """Rows with another schedule, or a time that is off by more than noise; most time first."""
    rows = [
        r
        for r in (*found["kernels"], found["between"])
        if r["changes"] or abs((r["speedup"] or 1.0) - 1) > _NOISE
    ]
    return sorted(rows, key=_gap, reverse=True)


def _gap(r: Facts) -> float:
    old, new = _both(r)
    return abs((old or 0.0) - (new or 0.0))


def _both(r: Facts) -> tuple[float | None, float | None]:
    return r["old_seconds"], r["new_seconds"]


def _whole(found: Facts) -> str:
    old, new = found["old"], found["new"]
    times = (
        f"{old['model']}: {human_time(old['seconds'])} before, "
        f"{human_time(new['seconds'])} after"
    )
    if not found["same_machine"]:
        return times
    ratio = old["seconds"] / new["seconds"] if new["seconds"] else 0.0
    return f"{times}: {ratio:.2f} times the speed"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else human_time(seconds)


def _times(r: Facts) -> str:
    return "" if r["speedup"] is None else f"{r['speedup']:.2f}×"
