"""No option is accepted and then ignored: a verb lacks it, or says why it has no effect."""

from __future__ import annotations

import click
import numpy as np
import pytest

from tilewright.cli import app, options
from tilewright.cli.options import COMPILE

# Verbs and the compile options that they accept.
TAKEN = {
    "run": {*COMPILE},
    "compile": {*COMPILE} - {"jit"},
    "bench": {*COMPILE} - {"scales", "jit"},
    "verify": {*COMPILE} - {"scales", "jit"},
    "check": {
        "target",
        "mcpu",
        "fallback",
        "memory_limit",
        "trust",
        "external_data_root",
        "no_default",
        "dim",
    },
    "demo": {"mcpu", "threads", "math", "memory_limit", "sanitize"},
    "quantize": {"threads", "memory_limit", "trust", "external_data_root", "dim"},
}


@pytest.mark.parametrize("verb", TAKEN)
def test_a_verb_takes_what_it_uses(verb):
    names = {p.name for p in app.cli.get_command(None, verb).params}
    assert names & {*COMPILE} == TAKEN[verb]


@pytest.mark.parametrize(
    "line", ["demo --target vta", "demo --dim n=1", "demo --trust"]
)
def test_an_option_of_other_verbs_is_refused(command, line):
    found = command(*line.split())
    assert found.code == 2 and "No such option" in found.err, found.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run M --roofline", "--roofline: it adds a column to --profile. Add --profile"),
        ("run M --why", "--why: it explains what --profile shows. Add --profile"),
        ("compile M --target vta --certify", "--certify: --target vta rounds to bytes"),
        ("compile M --emit kernel --sanitize", "--sanitize: --emit kernel writes no artifact"),
        ("compile M --emit graph --certify", "--certify: --emit graph writes no artifact"),
        ("compile M --seed 3", "--seed: it seeds the inputs of --certify"),
        ("verify M --kernels --tolerance 1", "--tolerance: --kernels generates the inputs"),
        ("verify A --seed 3 --math fast", "--seed, --math: an artifact contains machine code"),
        ("run A --no-cache --sanitize", "--no-cache, --sanitize: an artifact is already compiled"),
        ("explore matmul --trust", "matmul: --trust: an operator is not a file of a model"),
    ],
)  # fmt: skip
def test_an_option_without_an_effect_is_refused(command, perceptron, line, said):
    artifact = perceptron.with_suffix(".tw")
    artifact.touch()
    files = {"M": perceptron, "A": artifact}
    found = command(*(files.get(word, word) for word in line.split()))
    assert found.code != 0 and said in found.err, found.err
    assert "\n" not in found.err.strip()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--strict", "--strict was replaced: use --fallback error"),
        ("--no-strict", "--no-strict was replaced: use --fallback warn"),
        ("--math strict", "'strict' was replaced: use --math default"),
    ],
)
def test_a_replaced_spelling_is_refused_with_the_present_one(
    command, perceptron, line, said
):
    found = command("run", perceptron, *line.split())
    assert found.code == 2 and said in found.err, found.err


@pytest.mark.parametrize(
    "verb", ["run", "compile", "bench", "verify", "check", "explore"]
)
def test_a_dimension_that_no_input_has_is_refused(command, perceptron, symbolic, verb):
    found = command(verb, perceptron, "--dim", "batch=2")
    assert found.code != 0 and "no dimension is called 'batch'" in found.err, found.err
    found = command(verb, symbolic, "--dim", "bach=2")
    assert found.code != 0 and "the inputs have: batch" in found.err, found.err


def test_text_in_a_file_is_said_as_json(command, perceptron, tmp_path):
    path = tmp_path / "graph.txt"
    found = command("compile", perceptron, "--emit", "graph", "-o", path, "--json")
    assert found.code == 0 and found.json == {"stage": "graph", "file": str(path)}
    assert "MatMul" in path.read_text()


def test_as_json_the_cache_is_listed_as_far_as_asked(command, perceptron):
    assert command("run", perceptron, "--repeat", 1).code == 0
    assert len(command("cache", "list", "--json").json) > 1
    assert len(command("cache", "list", "--json", "--limit", 1).json) == 1


@pytest.mark.parametrize("given", ["batch=1..3", "batch=1,3"])
def test_run_takes_the_values_that_a_dimension_may_have(command, symbolic, given):
    for more in ([], ["--no-jit"]):
        found = command("run", symbolic, "--dim", given, "--json", *more)
        assert found.code == 0, found.err
        assert found.json["outputs"]["y"]["shape"] == [3, 4]
        assert "'batch' has a range: assumed 3, its greatest" in found.err


def test_an_input_outside_of_a_range_is_refused(command, symbolic, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 8), np.float32))
    given = ("--input", f"x={tmp_path / 'x.npy'}", "--dim", "batch=1..3")
    for more in ((), ("--no-jit",)):
        found = command("run", symbolic, *given, *more)
        assert found.code == 1 and "batch is 4, and may be 1 to 3" in found.err


def test_without_jit_every_dimension_has_a_range(command, symbolic, perceptron):
    found = command("run", symbolic, "--no-jit")
    assert (
        found.code == 1 and "batch" in found.err and "may have any extent" in found.err
    )
    found = command("run", perceptron, "--no-jit")
    assert found.code == 2 and "--no-jit: all extents are numbers" in found.err


@pytest.mark.parametrize("verb", ["verify", "check", "tune"])
def test_a_range_is_refused_where_one_value_is_needed(command, symbolic, verb):
    found = command(verb, symbolic, "--dim", "batch=1..3")
    assert found.code == 2 and "1..3, which only run, bench" in found.err, found.err


@pytest.mark.parametrize("count", [1, 2, 3, 1024])
def test_more_threads_than_processors_are_noted(count, monkeypatch, capsys):
    monkeypatch.setattr(options, "affinity", lambda: frozenset({0, 1}))
    said = f"{count} threads{{}} on 2 processors here: they wait for one another\n"
    for name in ("TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert given_threads("--threads", str(count)) == count
    shown = "tilewright: " + said.format("")
    assert capsys.readouterr().err == (shown if count > 2 else "")
    for name in ("OMP_NUM_THREADS", "TILEWRIGHT_NUM_THREADS"):  # the second goes first
        monkeypatch.setenv(name, str(count))
        assert given_threads() is None
        shown = "tilewright: " + said.format(f", of {name},")
        assert capsys.readouterr().err == (shown if count > 2 else "")
    assert given_threads("--threads", "1") == 1
    assert capsys.readouterr().err == ""


def given_threads(*arguments):
    """What a command with --threads is given for these arguments."""
    verb = click.Command("verb", callback=lambda threads: threads)
    verb = options.threads_option("Threads.")(verb)
    return verb.main(arguments, standalone_mode=False)
