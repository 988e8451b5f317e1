"""A wrong value of any option of any verb: exit code 2 and one clear line, whoever finds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from tests.llm.folders import llama
from tilewright.cli import app

# Wrong texts for all options of a type (as click names it, or the help our own), for an option, or
# for an option of a verb; with what else must be given for the verb to look at them.
WRONG: Mapping[str, Sequence[str]] = {
    "integer": ["some", "1.5"],
    "integer range": ["some", "1.5", "-7"],
    "float": ["some"],
    "float range": ["some", "-7", "nan"],
    "choice": ["some", ""],
    "number": ["some", "-7", "nan", "inf"],
    "numbers": ["some", "1,nan"],
    "share": ["some", "-7", "101%", "nan"],
    "size": ["some", "-7", "1X"],
    "time": ["soon", "0s", "-1m", "nan"],
    "ids": ["some", "1,-1", ""],
    "cost": ["some", "time*-1", ""],
    "name=extent": ["batch", "batch=", "batch=some", "batch=-1", "batch=3..1", "=1"],
    "name=file": ["x", "x=", "=x"],
    "N": ["some", "0", "16,-7", ""],
    "NAME=EXPANSION": ["conv", "conv=", "=op"],
    "some of lts": ["some", "lts,some", ""],
    "--target": ["some"],
    "--mcpu": ["some"],
    "--no-default": ["some"],
    "compile --kernel": ["some --emit kernel"],
    "compile --target-triple": ["some -o model.so"],
    "quantize --for": ["some"],
    "quantize --keep": ["some"],
    "quantize --group": ["-7 --weights int4", "33 --weights int4"],
    "quantize --percentile": ["-7 --method percentile", "nan --method percentile", "9"],
    "quantize --smooth": ["-7", "nan", "1.5"],
    "optimize --alpha": ["nan", "-7"],
    "optimize --budget": ["-7"],
    "optimize --patience": ["-7"],
    "bench --against": ["some"],
    "tune --kernel": ["some --records tuned"],
    "tune --method": ["some"],
    "tune --cost-model": ["some"],
    "tune --fleet": ["some --records tuned", "local:0"],
    "tune --device": ["some"],
    "generate --stop": [""],
    "generate --context": ["65"],  # the model was trained with 64
    "serve --context": ["65"],
    "serve --api-key": ["short", "@absent"],
    "run --machine": ["some --target npu"],
}
# A file or a folder that is not there is another failure.
FILES = {"path", "file", "directory"}
# Names of files, or of what there may be none of, such as records of a machine; and texts.
ANY = {
    "--records", "--schedules", "--machine", "--host", "--prompt", "fleet worker --device",
    *(f"records {verb} --{name}" for verb in ("best", "export", "list", "prune")
      for name in ("model", "operator", "machine")),
}  # fmt: skip
ARGUMENTS = {
    "explore": ["matmul:8x8x8"],
    "generate": ["F", "--prompt", "Once"],
    "serve": ["F", "--port", "0"],
    "embed": ["text", "--model", "F"],
    "fleet keys": ["keys"],
    "fleet status": ["127.0.0.1:1"],
    "fleet worker": ["127.0.0.1:1"],
    "records export": ["out.json"],
    "records import": ["M"],
    "completion": ["bash"],
    **{verb: [] for verb in ("demo", "doctor", "fleet scheduler")},
    **{f"cache {verb}": [] for verb in ("clear", "list", "stat")},
    **{f"records {verb}": [] for verb in ("best", "list", "prune")},
}  # fmt: skip


def verbs(
    command: click.Command = app.cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Each verb, such as `cache list`, and its command."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        assert found is not None
        yield from verbs(found, (*path, name))


VERBS = dict(verbs())


def valued(command: click.Command) -> list[click.Option]:
    """The options that take a value."""
    options = [p for p in command.params if isinstance(p, click.Option)]
    return [o for o in options if not o.is_flag and not o.count]


def flag_of(option: click.Option) -> str:
    return next(o for o in option.opts if o.startswith("--"))


def wrong(verb: str, option: click.Option) -> list[str]:
    """Wrong values of an option, each with what else is to be given."""
    flag = flag_of(option)
    texts = WRONG.get(f"{verb} {flag}", WRONG.get(flag, ()))
    return [*WRONG.get(option.type.name, ()), *texts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = llama(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1)
    return made.write().path


@pytest.fixture
def given(
    command: Any, perceptron: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs a verb with its arguments, an option and a text for it, and words that follow."""
    monkeypatch.chdir(perceptron.parent)
    words = {"M": perceptron.name, "F": folder}

    def run(verb: str, flag: str, text: str) -> tuple[Any, str]:
        """What the command did, and the same as text."""
        arguments = [words.get(a, a) for a in ARGUMENTS.get(verb, ["M"])]
        found = command(*verb.split(), *arguments, flag, *text.split(" "))
        shown = f"{verb} {flag} {text!r}: {found.code}, {found.err}{found.out}"
        assert "Traceback" not in found.err and "internal" not in found.err, shown
        return found, shown

    return run


@pytest.mark.parametrize("verb", VERBS)
def test_it_is_a_wrong_usage_in_one_clear_line(verb: str, given: Any) -> None:
    for option in valued(VERBS[verb]):
        flag = flag_of(option)
        for text in wrong(verb, option):
            found, shown = given(verb, flag, text)
            assert (found.code, found.out) == (2, ""), shown
            lines = [line for line in found.err.splitlines() if line][-1:]
            names = flag, text.split(" ")[0], str(option.name)
            assert lines and any(name in lines[0] for name in names), shown


def test_each_option_has_a_wrong_value_or_takes_any() -> None:
    """A new option must be named above."""
    for verb, command in VERBS.items():
        for option in valued(command):
            flag = flag_of(option)
            takes_any = {flag, f"{verb} {flag}"} & ANY or option.type.name in FILES
            assert takes_any or wrong(verb, option), f"{verb} {flag}"
    options = [(verb, option) for verb, c in VERBS.items() for option in valued(c)]
    known = {f"{verb} {flag_of(option)}" for verb, option in options}
    known |= {flag_of(option) for _, option in options}
    known |= {option.type.name for _, option in options}
    assert {*WRONG, *ANY} <= known, {*WRONG, *ANY} - known


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"demo"}))  # it makes the folder
def test_a_file_that_is_not_there_is_said_in_one_line(verb: str, given: Any) -> None:
    for option in valued(VERBS[verb]):
        if option.type.name in FILES and option.name != "records":
            found, shown = given(verb, flag_of(option), "gone/file")
            assert found.code in (1, 2), shown
