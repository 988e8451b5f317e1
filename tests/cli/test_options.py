"""No option is accepted and then ignored: a verb lacks it, or says why it has no effect."""

from __future__ import annotations

import pytest

from tilewright.cli import app
from tilewright.cli.options import COMPILE

# Verbs and what they take of the options about compiling.
TAKEN = {
    "run": {*COMPILE},
    "compile": {*COMPILE},
    "bench": {*COMPILE} - {"scales"},
    "verify": {*COMPILE} - {"scales"},
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
