"""`tilewright records`: the measurements of tuning, and those that `compile` uses."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from tilewright.base import flags
from tilewright.base.errors import InputError
from tilewright.base.files import write_whole
from tilewright.base.text import human_time, plural
from tilewright.cli.groups import CommandGroup
from tilewright.cli.options import AMOUNT, OUT, PATH, json_option
from tilewright.cli.output import dump, note, say, table

if TYPE_CHECKING:
    from tilewright.tune.records.columns import RecordFilter
    from tilewright.tune.records.database import Records
    from tilewright.tune.records.rows import Choice, Record

ROWS: Final = 20
_DAY: Final = 86400.0
_WIDEST: Final = 40  # letters of a cell
_BAD_LINES: Final = 10  # bad lines to list

Verb = Callable[..., Any]


@click.group(cls=CommandGroup)
def command() -> None:
    """Show, export, import and prune tuning records.

    \b
    Example:
      tilewright records list --operator conv
      tilewright records best
      tilewright records export mine.jsonl && tilewright records import theirs.jsonl
      tilewright records prune --failed --older 90
    """


_FILE: Final = click.option(
    "--records", "file", type=PATH, help="The file of records; default: the user's own."
)
_FILTERS: Final = (
    click.option(
        "--model", default="", help="Only records of models with this in their name."
    ),
    click.option(
        "--operator",
        default="",
        help="Only kernels with this in their name or operators.",
    ),
    click.option(
        "--machine",
        default="",
        help="Only records of processors with this in their name.",
    ),
)


def _filters(verb: Verb) -> Verb:
    for option in reversed(_FILTERS):
        verb = option(verb)
    return verb


@command.command("list")
@_filters
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Number of rows; default: {ROWS}, or all with --json.",
)
@_FILE
@json_option
def list_tasks(
    model: str,
    operator: str,
    machine: str,
    limit: int | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """List the tuned kernels, most recent first.

    \b
    Example:
      tilewright records list --model resnet --machine epyc
    """
    tasks = _tasks(_read(file, model, operator, machine)[0])
    if as_json:
        dump(tasks[:limit])
        return
    rows = [
        [
            _cell(t["kernel"]),
            _cell(t["shapes"]),
            _cell(t["processor"]),
            str(t["threads"]),
            str(t["trials"]),
            str(t["failed"]),
            "-" if t["seconds"] is None else human_time(t["seconds"]),
            _day(t["time"]),
        ]
        for t in tasks[: limit or ROWS]
    ]
    heading = [
        "kernel",
        "shapes",
        "processor",
        "threads",
        "trials",
        "failed",
        "best",
        "last",
    ]
    _show(heading, rows, "<<<>>>><", "no record is of such a kernel")
    if len(tasks) > len(rows):
        say(f"... {plural(len(tasks), 'kernel')} in all")


@command.command()
@_filters
@_FILE
@json_option
def best(
    model: str, operator: str, machine: str, file: Path | None, as_json: bool
) -> None:
    """Show the schedules that compile uses, and their speedups over the default.

    \b
    Example:
      tilewright records best --json
    """
    from tilewright.tune.records import best as rule

    found = rule.best(_read(file, model, operator, machine)[1]).values()
    used = sorted(found, key=lambda c: -c.gain)
    if as_json:
        dump([_of_choice(c) for c in used])
        return
    rows = [
        [
            _cell(c.task),
            _cell(c.key.shapes),
            _cell(c.key.processor),
            str(c.key.threads),
            human_time(c.seconds),
            human_time(c.default_seconds),
            f"{c.gain:.2f}x",
            _day(c.time),
        ]
        for c in used
    ]
    heading = [
        "kernel",
        "shapes",
        "processor",
        "threads",
        "time",
        "default",
        "gain",
        "of",
    ]
    why = "no recorded schedule is faster than a default"
    _show(heading, rows, "<<<>>>><", why)


def _show(heading: list[str], rows: list[list[str]], align: str, nothing: str) -> None:
    """A table; without rows what that means, and what would change it."""
    if rows:
        say(table(heading, rows, align))
    else:
        note(f"{nothing}: tilewright tune MODEL --time 10m records more")


@command.command("export")
@click.argument("output", type=OUT)
@_filters
@_FILE
@json_option
def export_rows(
    output: Path,
    model: str,
    operator: str,
    machine: str,
    file: Path | None,
    as_json: bool,
) -> None:
    """Write the records to OUTPUT as JSON Lines, one record per line.

    \b
    Example:
      tilewright records export resnet.jsonl --model resnet
    """
    from tilewright.tune.records import jsonl

    records, choices = _read(file, model, operator, machine)

    def write(out: IO[bytes]) -> None:
        for record in records:
            out.write(jsonl.line(record).encode())
        for choice in choices:
            out.write(jsonl.line(choice).encode())

    write_whole(output, write)
    if as_json:
        dump({"file": str(output), "trials": len(records), "choices": len(choices)})
    else:
        counts = f"{plural(len(records), 'trial')} and {plural(len(choices), 'choice')}"
        say(f"{output}: {counts}")


@command.command("import")
@click.argument("files", type=PATH, nargs=-1, required=True)
@_FILE
@json_option
def import_rows(files: Sequence[Path], file: Path | None, as_json: bool) -> int:
    """Add the records of FILES written by `export`; existing records are kept.

    The exit code is 1 if a line is not a record; the other lines are still imported.

    \b
    Example:
      tilewright records import theirs.jsonl
    """
    from tilewright.tune.records import jsonl
    from tilewright.tune.records.database import Records
    from tilewright.tune.records.jsonl import BadLine
    from tilewright.tune.records.published import expect_folder

    rows: list[Record | Choice] = []
    bad: list[str] = []
    for name in files:
        with name.open("rb") as lines:
            for row in jsonl.read(lines):
                if isinstance(row, BadLine):
                    bad.append(f"{name}: {row}")
                else:
                    rows.append(row)
    place = _place(file)
    expect_folder(place)
    with Records(place) as records:
        new = records.merge(rows)
    if as_json:
        dump({"new": new, "known": len(rows) - new, "bad": bad})
        return int(bool(bad))
    for text in bad[:_BAD_LINES]:
        note(text)
    if len(bad) > _BAD_LINES:
        note(f"... {plural(len(bad), 'line')} in all that are not records")
    say(f"{plural(new, 'record')} added, {len(rows) - new} there already")
    return int(bool(bad))


@command.command()
@_filters
@click.option("--older", type=AMOUNT, metavar="DAYS", help="Trials older than this.")
@click.option("--failed", is_flag=True, help="Trials that failed.")
@click.option(
    "--keep",
    type=click.IntRange(1),
    help="All but this many of the fastest trials of a kernel.",
)
@click.option(
    "--outdated", is_flag=True, help="Trials of versions whose schedules differ."
)
@click.option(
    "--dry-run", is_flag=True, help="Report what would be deleted, and delete nothing."
)
@_FILE
@json_option
def prune(
    model: str,
    operator: str,
    machine: str,
    older: float | None,
    failed: bool,
    keep: int | None,
    outdated: bool,
    dry_run: bool,
    file: Path | None,
    as_json: bool,
) -> None:
    """Delete the trials selected by the options, except those that compile uses.

    \b
    Example:
      tilewright records prune --failed --older 90 --dry-run
    """
    from tilewright.tune.records.pruning import Rules, prunable

    if older is None and keep is None and not failed and not outdated:
        raise click.UsageError(
            "give at least one of --older, --failed, --keep, --outdated"
        )
    before = None if older is None else time.time() - older * _DAY
    place = _existing(file)
    if place is None:
        found: list[Record] = []
    else:
        with _opened(place, write=not dry_run) as records:
            rows = records.records(_filter(model, operator, machine))
            rules = Rules(before, failed, keep, outdated)
            found = prunable(rows, records.choices(), rules)
            if not dry_run:
                records.prune(found)
    if as_json:
        dump({"trials": len(found), "deleted": not dry_run})
    else:
        did = "would be deleted" if dry_run else "deleted"
        say(f"{plural(len(found), 'trial')} {did}")


def used_line(meta: Mapping[str, Any]) -> str:
    """A compiled model's description of the records it was made with; empty if there are none."""
    used = meta.get("tuned", ())
    if not used:
        return ""
    gains = [u["gain"] for u in used]
    most = f"{max(gains):.2f}x of default"
    gain = most if min(gains) == max(gains) else f"{min(gains):.2f}x to {most}"
    latest = _day(max(u["time"] for u in used))
    decisions = sum("decision" in u for u in used)
    kernels = len(used) - decisions
    counts = [plural(kernels, "kernel")] if kernels else []
    if decisions:
        counts.append(
            plural(decisions, "decision of the plan", "decisions of the plan")
        )
    what = " and ".join(counts)
    return f"tuned: {what} by records up to {latest}, {gain}"


def _tasks(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The measurements of each kernel, the latest first."""
    found: dict[str, dict[str, Any]] = {}
    for r in records:
        task = found.setdefault(r.key.digest, _new_task(r))
        seconds = r.trial.measurement.seconds
        task["trials"] += 1
        task["time"] = max(task["time"], r.time)
        task["models"] = sorted({*task["models"], r.run.model})
        if math.isinf(seconds):
            task["failed"] += 1
        else:
            known = task["seconds"]
            task["seconds"] = seconds if known is None else min(known, seconds)
    return sorted(found.values(), key=lambda t: -t["time"])


def _new_task(r: Record) -> dict[str, Any]:
    return {
        "kernel": r.task,
        "digest": r.key.digest,
        **asdict(r.key),
        "models": [],
        "trials": 0,
        "failed": 0,
        "seconds": None,
        "time": 0.0,
    }


def _of_choice(c: Choice) -> dict[str, Any]:
    candidate = c.candidate
    assert candidate is not None
    return {
        "kernel": c.task,
        "digest": c.key.digest,
        **asdict(c.key),
        "model": c.run.model,
        "seconds": c.seconds,
        "default_seconds": c.default_seconds,
        "gain": c.gain,
        "time": c.time,
        "values": {"sketch": candidate.sketch, **candidate.values},
    }


def _read(
    file: Path | None, model: str, operator: str, machine: str
) -> tuple[list[Record], list[Choice]]:
    """The requested rows."""
    place = _existing(file)
    if place is None:
        return [], []
    wanted = _filter(model, operator, machine)
    with _opened(place, write=os.access(place.parent, os.W_OK)) as records:
        return records.records(wanted), records.choices(wanted)


def _filter(model: str, operator: str, machine: str) -> RecordFilter:
    from tilewright.tune.records.columns import RecordFilter

    return RecordFilter(model, operator, machine)


def _opened(place: Path, write: bool) -> Records:
    from tilewright.tune.records.database import Records

    return Records(place, write=write)


def _existing(file: Path | None) -> Path | None:
    """The file of records; None, with a note, if nothing was recorded yet."""
    place = _place(file)
    if place.exists():
        return place
    if file is not None:
        raise InputError(
            "there are no tuning records", where=str(file), hint="Check the path"
        )
    note(
        f"nothing was recorded yet: there is no {place}; tilewright tune MODEL writes it"
    )
    return None


def _place(file: Path | None) -> Path:
    from tilewright.tune.records.published import default_path

    place = file or default_path()
    if place is None:
        raise InputError(
            "records are off",
            where=flags.RECORDS.name,
            hint=f"Unset {flags.RECORDS.name}, or give --records FILE",
        )
    return place


def _cell(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
