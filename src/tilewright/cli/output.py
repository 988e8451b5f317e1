"""The output of commands: tables, JSON, notes, progress."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.base.text import columns, human_time, visible

if TYPE_CHECKING:
    from rich.progress import Progress

# Shorter work needs no progress bar.
_PATIENCE_SECONDS: Final = 1.0
# Seconds between two lines of progress in a log.
_LINE_SECONDS: Final = 10.0
_NARROW: Final = 20  # characters; a narrower column is not wrapped


def say(text: str = "") -> None:
    """A line of the result, on stdout."""
    click.echo(visible(text))


def note(text: str) -> None:
    """A line about the result, on stderr."""
    click.echo(visible(f"tilewright: {text}"), err=True)


def table(
    heading: Sequence[str], rows: Sequence[Sequence[str]], align: str = ""
) -> str:
    """Rows under a heading as aligned text; ``align`` has ``<`` or ``>`` per column.

    On a terminal, the last column is wrapped if it is too long.
    """
    return columns(_wrapped([heading, *rows]), align)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """``name  value`` lines, the values aligned; on a terminal as `table`."""
    return columns(_wrapped(pairs))


def _wrapped(rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    """The rows, the last column in as many lines as the terminal needs."""
    if sys.stdout is None or not sys.stdout.isatty() or not rows:  # None: it is closed
        return rows
    head = columns([row[:-1] for row in rows]).split("\n")
    room = shutil.get_terminal_size().columns - max(map(len, head)) - 2
    if room < _NARROW:
        return rows
    found: list[Sequence[str]] = []
    for *first, last in rows:
        for line in textwrap.wrap(last, room) or [""]:
            found.append((*first, line))
            first = [""] * len(first)
    return found


def dump(value: object) -> None:
    """Print ``value`` as JSON on stdout; infinities and NaN, which JSON lacks, become strings."""
    click.echo(json.dumps(_plain(value), indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # NumPy scalars know their Python value; everything else (paths, dtypes) its text.
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def expect_suffix(path: Path, known: Sequence[str], what: str) -> None:
    """Raise InputError for an output file that is called otherwise than its format.

    what: the format in words. A device, as /dev/null, may have any name.
    """
    if path.suffix not in known and (path.is_file() or not path.exists()):
        found = path.suffix or "a file without a suffix"
        hint = f"name it {path.with_suffix(known[0]).name}"
        raise InputError(f"{what}, not {found}", where=str(path), hint=hint)


@contextmanager
def progress(title: str) -> Iterator[None]:
    """Show progress on stderr while the block runs.

    On a terminal, it is a bar after the first second; elsewhere, as in a log, a plain line every 10
    seconds. Both follow the events of the compiler: each event with a ``total`` is one step of so
    many.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    show = _bar if is_terminal else _lines
    with show(title) as follow:
        try:
            events.subscribe(follow)
            yield
        finally:
            events.unsubscribe(follow)


@contextmanager
def _lines(title: str) -> Iterator[Callable[[events.Event], None]]:
    """A listener that prints a line of progress now and then."""
    begin = said = time.monotonic()
    steps: Counter[str] = Counter()

    def follow(event: events.Event) -> None:
        nonlocal said
        total = event.fields.get("total") if event.elapsed is None else None
        steps[event.kind] += total is not None
        now = time.monotonic()
        if now - said < _LINE_SECONDS:
            return
        said = now
        count = "" if total is None else f", {steps[event.kind]} of {total}"
        note(f"{_described(title, event)}{count}, {human_time(now - begin)}")

    yield follow


@contextmanager
def _bar(title: str) -> Iterator[Callable[[events.Event], None]]:
    """A listener that moves a bar."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        # Another thread would keep the compiler from forking processes.
        auto_refresh=False,
    )
    try:
        yield _follower(bar, title)
    finally:
        bar.stop()


def _described(title: str, event: events.Event) -> str:
    """The current activity, and its latest event."""
    subject = str(event.fields.get("name", ""))[:40]
    return f"{title}: {event.kind} {subject}".rstrip()


def _follower(bar: Progress, title: str) -> Callable[[events.Event], None]:
    task = bar.add_task(title, total=None)
    begin = time.monotonic()

    def follow(event: events.Event) -> None:
        bar.update(task, description=visible(_described(title, event)))
        if event.elapsed is None and "total" in event.fields:
            bar.update(task, total=event.fields["total"], advance=1)
        if time.monotonic() - begin > _PATIENCE_SECONDS:
            bar.start()
            bar.refresh()

    return follow
