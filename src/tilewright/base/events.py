"""A small event recorder: what happened, when, and for how long.

Every interesting moment (a pass ran, a rule fired, a candidate was measured) is emitted here. With
no listener, that costs one test. Reports are made from recorded events only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from tilewright.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. Times are in seconds of ``time.perf_counter``.

    ``elapsed`` is None for a moment; for a span, ``start`` is its beginning. ``thread`` is the
    identifier of the thread it happened in.
    """

    kind: str
    start: float
    elapsed: float | None
    thread: int
    fields: dict[str, Any]


Listener = Callable[[Event], None]

# Replaced, never changed in place: emit() may run in another thread at the same time.
_listeners: tuple[Listener, ...] = ()
_changing = threading.Lock()


def subscribe(listener: Listener) -> None:
    """Call ``listener`` with every event of the process from now on."""
    global _listeners
    with _changing:
        _listeners = (*_listeners, listener)


def unsubscribe(listener: Listener) -> None:
    """Undo one ``subscribe``; a listener that is not subscribed is ignored."""
    global _listeners
    with _changing:
        rest = list(_listeners)
        if listener in rest:
            rest.remove(listener)
        _listeners = tuple(rest)


def silence() -> None:
    """Drop every listener: a forked process inherits those of its parent."""
    global _listeners
    with _changing:
        _listeners = ()


def listening() -> bool:
    """Whether there is a listener, so that costly fields need computing."""
    return bool(_listeners)


def emit(kind: str, /, **fields: Any) -> None:
    """Report a moment. Costs almost nothing without a listener."""
    if _listeners:
        _send(Event(kind, time.perf_counter(), None, threading.get_ident(), fields))


def forward(event: Event) -> None:
    """Report what happened elsewhere: in a process that worked for this one."""
    _send(event)


class Span:
    """A stretch of time being measured; made by ``span``. ``elapsed`` is set when it ends."""

    __slots__ = ("kind", "fields", "start", "elapsed")

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        self.kind = kind
        self.fields = fields
        self.start = 0.0
        self.elapsed = 0.0

    def set(self, **fields: Any) -> None:
        """Add facts that are known only later, such as how many nodes came out."""
        self.fields.update(fields)

    def __enter__(self) -> Span:
        self.start = time.perf_counter()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.elapsed = time.perf_counter() - self.start
        if _listeners:
            if error_type is not None:
                self.fields["error"] = error_type.__name__
            ident = threading.get_ident()
            _send(Event(self.kind, self.start, self.elapsed, ident, self.fields))


def span(kind: str, /, **fields: Any) -> Span:
    """Measure a ``with`` block; one event when it ends, with the error's name if it failed."""
    return Span(kind, fields)


@contextmanager
def record() -> Iterator[list[Event]]:
    """The events inside the ``with`` block, ordered by their end."""
    events: list[Event] = []
    try:
        subscribe(events.append)
        yield events
    finally:
        unsubscribe(events.append)


def _send(event: Event) -> None:
    for listener in _listeners:
        listener(event)
