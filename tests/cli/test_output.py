"""What verbs print and write: JSON for any value, progress on terminals only, whole files."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.base import events
from tilewright.cli import output


def test_json_of_what_json_lacks(capsys):
    output.dump(
        {
            "a": float("inf"),
            "b": [np.float32(1.5), np.int64(2)],
            "c": Path("x"),
            1: None,
        }
    )
    found = json.loads(capsys.readouterr().out)
    assert found == {"a": "inf", "b": [1.5, 2], "c": "x", "1": None}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """Standard error is a terminal from now on; not a fixture, which capturing would undo."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    return sys.stderr


def test_progress_follows_the_events(monkeypatch):
    shown = terminal(monkeypatch)
    monkeypatch.setattr(output, "_PATIENCE_SECONDS", -1.0)
    with output.progress("compiling m"):
        for n in range(3):
            events.emit("kernel-ready", name=f"kernel{n}", total=3)
    assert "compiling m: kernel-ready kernel2" in shown.getvalue()
    assert not events.listening()


def test_no_progress_for_what_is_quick(monkeypatch):
    shown = terminal(monkeypatch)
    monkeypatch.setattr(output, "_PATIENCE_SECONDS", float("inf"))
    with output.progress("compiling m"):
        events.emit("kernel-ready", total=1)
    assert "compiling" not in shown.getvalue()


def test_in_a_log_progress_is_plain_lines_now_and_then(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    with output.progress("compiling m"):
        for n in range(25):
            now += 1
            events.emit("kernel-ready", name=f"kernel\x1b{n}", total=25)
            with events.span("assemble"):
                pass
    assert capsys.readouterr().err.splitlines() == [
        "tilewright: compiling m: kernel-ready kernel\\x1b9, 10 of 25, 10.0 s",
        "tilewright: compiling m: kernel-ready kernel\\x1b19, 20 of 25, 20.0 s",
    ]
    assert not events.listening()


def test_in_a_log_what_is_quick_has_no_lines(capsys):
    with output.progress("compiling m"):
        events.emit("kernel-ready", total=1)
    assert capsys.readouterr().err == ""


def test_progress_ends_with_an_error(monkeypatch):
    terminal(monkeypatch)
    monkeypatch.setattr(output, "_PATIENCE_SECONDS", -1.0)
    with pytest.raises(ValueError, match="wrong"), output.progress("compiling m"):
        raise ValueError("wrong")
    assert not events.listening()


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_closed_stream_is_no_terminal(monkeypatch, name):
    monkeypatch.setattr(sys, name, None)
    assert output.facts([("a", "b")]) == "a  b"
    with output.progress("working"):
        events.emit("step", name="s", total=2)
