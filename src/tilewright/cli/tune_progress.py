"""The progress of a tuning run: a live table, plain lines, or JSON lines."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from tilewright.base import events
from tilewright.base.text import human_time, plural, visible
from tilewright.cli.output import note

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.cli.roofline import MachinePeaks

KINDS: Final = ("trial", "task-improved", "tune-progress", "tune-resumed", "final")
_COLUMNS: Final = (
    "kernel",
    "best",
    "gain",
    "roofline",
    "trials",
    "expected",
    "bound by",
)
_ROWS: Final = 24  # most kernels in the live table
_EVERY: Final = 10.0  # seconds between plain lines


class Progress:
    """Listens to a run. log: its events, for the report: kind, seconds since the start, fields."""

    def __init__(self, budget: float | None) -> None:
        self.log: list[tuple[str, float, dict[str, Any]]] = []
        self.kernels: dict[str, dict[str, Any]] = {}
        self.network: dict[str, Any] = {}
        self.budget = budget
        self._start = time.monotonic()

    def __call__(self, event: events.Event) -> None:
        if event.kind not in KINDS:
            return
        fields = dict(event.fields)
        self.log.append((event.kind, time.monotonic() - self._start, fields))
        if event.kind == "tune-progress":
            self.kernels[fields["task"]] = fields
            self.network = fields
        self.show(event.kind, fields)

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        """Show an event."""

    @property
    def line(self) -> str:
        """The progress of the run."""
        if not self.network:
            return "measuring the default schedules"
        f = self.network
        parts = [
            plural(f["network_trials"], "trial"),
            f"{f['network_gain']:.3f} times as fast",
            f"{f['network_expected_gain']:.1%} more expected",
            f"{human_time(f['elapsed'])}",
        ]
        if self.budget is not None:
            left = max(0.0, self.budget - f["elapsed"])
            parts[-1] += f", {human_time(left)} left"
        return ", ".join(parts)


class _Lines(Progress):
    """Prints a line every few seconds, on stderr."""

    _last = -math.inf

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        now = time.monotonic()
        if kind == "tune-progress" and now - self._last > _EVERY:
            self._last = now
            note(self.line)


class _Json(Progress):
    """Prints a JSON object for each event, on stderr: stdout has the result."""

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        plain = {k: v if _is_plain(v) else str(v) for k, v in fields.items()}
        click.echo(json.dumps({"event": kind, **plain}), err=True)


class _Live(Progress):
    """A table that is redrawn. peaks: of the machine that measures, if known."""

    live: Any = None
    peaks: MachinePeaks | None = None

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "tune-progress" and self.live is not None:
            self.live.update(self.table())

    def table(self) -> Table:
        """The kernels that take most of the time, and the total."""
        from rich.table import Table

        made = Table(title=self.line, title_justify="left")
        for name in _COLUMNS:
            is_text = name in ("kernel", "bound by")
            made.add_column(name, justify="left" if is_text else "right")
        order = sorted(self.kernels.values(), key=lambda f: -_taken(f))
        total = sum(map(_taken, order))
        for f in order[:_ROWS]:
            seconds = f["seconds"]
            best = human_time(seconds) if math.isfinite(seconds) else "-"
            cells = (best, f"{f['gain']:.2f}", self._share(f), str(f["trials"]))
            expected = f"{f['expected_gain']:.1%}"
            slow = self._is_slow(f, _taken(f) / total if total else 0.0)
            bound = visible(f["bound"]) if slow else ""
            made.add_row(visible(f["task"])[:48], *cells, expected, bound)
        if self.peaks is not None and self.peaks.note:
            made.caption = self.peaks.note
        return made

    def _share(self, f: dict[str, Any]) -> str:
        share = None if self.peaks is None else self.peaks.of(f)
        return "-" if share is None else f"{share:.0%}"

    def _is_slow(self, f: dict[str, Any], part: float) -> bool:
        return self.peaks is not None and self.peaks.is_far(f, part)


@contextmanager
def shown(
    as_json: bool,
    seconds: float | None,
    peaks: Callable[[], MachinePeaks | None] = lambda: None,
) -> Iterator[Progress]:
    """Show the run inside the block. seconds: its time limit. peaks: asked for a live table."""
    made: Progress
    if as_json:
        made = _Json(seconds)
    elif sys.stderr is not None and sys.stderr.isatty():
        made = _Live(seconds)
    else:
        made = _Lines(seconds)
    events.subscribe(made)
    try:
        if not isinstance(made, _Live):
            yield made
            return
        from rich.console import Console
        from rich.live import Live

        made.peaks = peaks()
        with Live(
            made.table(), console=Console(stderr=True), transient=True
        ) as made.live:
            yield made
    finally:
        events.unsubscribe(made)


def _taken(f: dict[str, Any]) -> float:
    """Seconds of all calls of a kernel in a run of the model, as far as they are known."""
    return f["calls"] * f["seconds"] if math.isfinite(f["seconds"]) else 0.0


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)
