"""The pages about the command and its errors say what is there: verbs, options, codes."""

import re
import shlex
from pathlib import Path

import pytest

from tilewright.base import errors
from tilewright.cli import app

DOCS = Path(__file__).parents[2] / "docs"
LINES = re.findall(r"^\$ tilewright (.+)$", (DOCS / "cli.md").read_text(), re.MULTILINE)


def test_every_verb_has_a_section():
    text = (DOCS / "cli.md").read_text()
    for verb in app.VERBS:
        assert f"\n## {verb}\n" in text


@pytest.mark.parametrize("line", LINES)
def test_every_example_parses(line):
    verb, *arguments = shlex.split(line.partition(" > ")[0])
    command = app.cli.get_command(None, verb)
    if hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(verb, arguments)


def test_every_shared_option_is_described():
    text = (DOCS / "cli.md").read_text()
    for parameter in app.cli.get_command(None, "run").params:
        names = [*parameter.opts, *parameter.secondary_opts]
        if parameter.param_type_name == "option" and parameter.name != "repeat":
            assert any(f"{name}" in text for name in names), names


def test_every_error_class_has_a_row():
    text = (DOCS / "errors.md").read_text()
    for name in errors.__all__:
        found = getattr(errors, name)
        if (
            issubclass(found, errors.TilewrightError)
            and found is not errors.TilewrightError
        ):
            assert f"| `{name}` | `{found.code}` |" in text
