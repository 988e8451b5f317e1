"""Events: everything is recorded while somebody listens, and nothing otherwise."""

import threading
import time

import pytest

from tests.interrupts import at_every_moment
from tilewright.base import events


def test_recording_in_order_of_ending():
    with events.record() as seen:
        assert events.listening()
        with events.span("pass", name="fold") as span:
            events.emit("rule", name="add-zero")
            span.set(nodes=3)
    events.emit("unheard")
    assert not events.listening()
    assert [event.kind for event in seen] == ["rule", "pass"]
    assert seen[0].elapsed is None
    assert seen[1].fields == {"name": "fold", "nodes": 3}
    assert seen[1].start <= seen[0].start
    assert seen[1].elapsed == span.elapsed >= 0
    assert seen[0].thread == threading.get_ident()


def test_a_field_may_be_called_kind():
    with events.record() as seen:
        events.emit("a", kind="b")
    assert seen[0].kind == "a"
    assert seen[0].fields == {"kind": "b"}


def test_a_failed_span_says_so_and_lets_the_error_through():
    with events.record() as seen, pytest.raises(KeyError):
        with events.span("pass"):
            raise KeyError("x")
    assert seen[0].fields["error"] == "KeyError"


def test_recorders_nest_and_listeners_come_and_go():
    calls = []
    events.subscribe(calls.append)
    with events.record() as outer:
        events.emit("one")
        with events.record() as inner:
            events.emit("two")
    events.unsubscribe(calls.append)
    events.unsubscribe(calls.append)
    events.emit("three")
    assert [event.kind for event in outer] == ["one", "two"]
    assert [event.kind for event in inner] == ["two"]
    assert len(calls) == 2


def test_a_span_measures_without_listeners():
    with events.span("sleep") as span:
        time.sleep(0.01)
    assert span.elapsed >= 0.009


def test_an_interrupt_at_any_moment_leaves_no_listener():
    def action():
        with events.record():
            pass

    for moment in at_every_moment(events.record.__wrapped__, action):
        assert not events.listening()
    assert moment > 3


def test_emitting_to_nobody_makes_no_event(monkeypatch):
    def refuse(*_):
        raise AssertionError("an event for nobody")

    monkeypatch.setattr(events, "Event", refuse)
    events.emit("rule", name="add-zero")
    with events.span("pass"):
        pass
