"""The frame of the command: exit codes 0, 1, 2; errors on one line; tracebacks when asked."""

import subprocess
import sys

import click
import pytest

from tilewright import __version__
from tilewright.base.errors import ModelError
from tilewright.cli import app


@pytest.fixture
def verb(monkeypatch):
    """Put a verb ``try`` that runs the given function into the command."""

    def install(function):
        command = click.command(name="try")(function)
        monkeypatch.setattr(app.cli, "get_command", lambda ctx, name: command)

    return install


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "tilewright", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert __version__ in done.stdout


def test_success_is_0(verb):
    verb(lambda: None)
    assert app.run(["try"]) == 0
    assert app.run(["--help"]) == 0


def test_a_verb_gives_its_own_code(verb):
    verb(lambda: 1)
    assert app.run(["try"]) == 1


def test_bad_usage_is_2(capsys):
    assert app.run(["no-such-verb"]) == 2
    assert "No such command 'no-such-verb'" in capsys.readouterr().err
    assert app.run([]) == 2


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModelError("cut off", where="m.onnx"), "m.onnx: cut off"),
        (FileNotFoundError(2, "No such file", "m.onnx"), "m.onnx"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_failure_is_1_and_one_line(verb, capsys, error, text, monkeypatch):
    monkeypatch.delenv("TILEWRIGHT_DEBUG", raising=False)

    def fail():
        raise error

    verb(fail)
    assert app.run(["try"]) == 1
    err = capsys.readouterr().err.lstrip()
    assert err.startswith("tilewright: ")
    assert text in err
    assert err.count("\n") == 1


def test_debugging_shows_tracebacks(verb, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")

    def fail():
        raise ModelError("cut off")

    verb(fail)
    with pytest.raises(ModelError):
        app.run(["try"])


@pytest.mark.parametrize("verb_name", app.VERBS)
def test_every_verb_has_help_with_an_example(verb_name, capsys):
    assert app.run([verb_name, "--help"]) == 0
    assert f"tilewright {verb_name}" in capsys.readouterr().out


def test_a_variable_that_is_no_setting_is_warned_about(verb, monkeypatch, capsys):
    verb(lambda: None)
    assert app.run(["try"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TILEWRIGHT_NUM_THREAD", "1")
    assert app.run(["try"]) == 0
    warned = capsys.readouterr().err
    assert warned.startswith(
        "tilewright: warning: TILEWRIGHT_NUM_THREAD is no setting. Did you mean"
    )
    assert "'TILEWRIGHT_NUM_THREADS'?" in warned and warned.count("\n") == 1
