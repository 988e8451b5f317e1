"""Ctrl-C at any moment: at most one line, a failure, and nothing left over."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import click
import pytest

from tests.waiting import PATIENCE
from tilewright.cli import app, interrupt, main

# Before this, Python itself is loading, and prints where it was interrupted.
BEGUN = """
import tilewright.cli
try:
    print("begun", flush=True)
    tilewright.cli.main()
except KeyboardInterrupt:  # it came before `main`
    raise SystemExit(1) from None
"""


@pytest.mark.sampled(3)  # at once, and at work
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.2, 0.4, 0.8])
def test_interrupting_leaves_nothing(perceptron, tmp_path, seconds):
    target = tmp_path / "m.tw"
    process = subprocess.Popen(
        [sys.executable, "-c", BEGUN, "compile", str(perceptron), "-o", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TILEWRIGHT_CACHE": "off"},
    )
    assert process.stdout.readline() == "begun\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert not list(tmp_path.glob(".*"))
    if target.exists():
        return  # it was done before the interrupt came
    # Ended by the signal where CPython saw it inside an `exec`.
    assert process.returncode in (1, -signal.SIGINT)
    assert err.strip() in ("", "tilewright: interrupted")


@pytest.fixture
def verb(monkeypatch):
    """Have `tilewright doctor` do something else."""

    def replace(action):
        made = click.Command("doctor", callback=action)
        monkeypatch.setattr(app._Verbs, "get_command", lambda *_: made)

    return replace


def test_an_interrupt_while_the_command_is_loaded(monkeypatch, capsys):
    class Loading(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "tilewright.cli.app", Loading("app"))
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "tilewright: interrupted\n"


def test_an_interrupt_that_python_wraps(command, verb):
    class Descriptor:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    def action():
        try:
            type("Class", (), {"field": Descriptor()})
        except KeyboardInterrupt as error:  # as from Python 3.12 on
            raise RuntimeError("wrapped") from error

    verb(action)
    found = command("doctor")
    assert (found.code, found.err.strip()) == (1, "tilewright: interrupted")


def test_an_interrupt_in_a_finalizer_is_not_lost(command, verb):
    class Dying:
        def __del__(self):
            raise KeyboardInterrupt

    def action():
        Dying()
        for _ in range(10_000_000):
            pass

    verb(action)
    hook = sys.unraisablehook
    found = command("doctor")
    assert (found.code, found.err.strip()) == (1, "tilewright: interrupted")
    assert sys.unraisablehook is hook


def test_errors_in_finalizers_are_printed_as_ever(command, verb, monkeypatch):
    class Dying:
        def __del__(self):
            raise ValueError("in a finalizer")

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    verb(lambda: Dying() and None)
    assert command("doctor").code == 0
    assert len(seen) == 1


# A minute of native code at least.
LONG = """
import hashlib
from tilewright.cli import interrupt
with interrupt.native_code():
    print("begun", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


def _ticks(pid):
    """The processor time of a process so far, in clock ticks."""
    text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(text.split()[11])


def test_native_code_that_does_not_return_is_ended():
    process = subprocess.Popen(
        [sys.executable, "-c", LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "begun\n"
        # Python itself sees an interrupt that comes before the call has begun.
        begun = _ticks(process.pid)
        while _ticks(process.pid) < begun + 5:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (1, "tilewright: interrupted\n")


def test_what_sees_the_interrupt_itself_is_left_to_it():
    threads, begin = threading.active_count(), time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupt.native_code():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
    assert time.monotonic() - begin < 30
    with interrupt.native_code():  # and one without any
        pass
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1
