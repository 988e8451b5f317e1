"""The table of cost models: its measures by hand, and a run on programs that are given."""

import json
import random

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import cost_models, cost_programs
from benchmarks.cost_models import folds, pair_accuracy, recall_at, top_1
from benchmarks.cost_programs import OPERATORS, Operator, Program


def test_pairs_that_are_apart_count():
    seconds = np.array([1.0, 1.05, 2.0, 4.0])
    assert pair_accuracy(seconds, seconds) == 1
    assert pair_accuracy(-seconds, seconds) == 0
    assert pair_accuracy(np.zeros(4), seconds) == 0.5
    # The first two are too close to count; 2 and 4 are in the wrong order, one of five pairs.
    assert pair_accuracy(np.array([1.0, 0.0, 4.0, 2.0]), seconds) == 0.8
    assert pair_accuracy(np.zeros(1), np.ones(1)) == 1


def test_the_best_prediction_and_how_many_of_the_best():
    seconds = np.array([4.0, 1.0, 2.0, 8.0])
    assert top_1(np.array([0.0, 1.0, 2.0, 3.0]), seconds) == 0.25
    assert top_1(seconds, seconds) == 1
    assert recall_at(2, np.array([0.0, 1.0, 2.0, 3.0]), seconds) == 0.5
    assert recall_at(9, -seconds, seconds) == 1  # all of them


def test_each_operator_is_held_out_once():
    names = list(OPERATORS)
    found = list(folds(names, 0))
    assert sorted(n for _, held in found for n in held) == sorted(names)
    assert all(not learned & held for learned, held in found)
    assert all(learned | held == set(names) for learned, held in found)


@pytest.fixture(scope="module")
def given():
    """Programs of two operators, with times that a formula gives."""
    made = []
    for name in ("product_row", "softmax"):
        operator = Operator(name)
        r = random.Random(0)
        for n in range(6):
            point = operator.sketches[0].random(r)
            made.append(Program(name, point.sketch, point.values, 1e-4 * (n + 1)))
    made[3] = Program(made[3].operator, made[3].sketch, made[3].values, float("inf"))
    return made


def test_programs_are_kept(given, tmp_path):
    path = tmp_path / "programs.json"
    cost_programs.save(path, given, {"processor": "a"})
    kept = cost_programs.load(path)
    assert [p.seconds for p in kept] == [p.seconds for p in given]
    again = Operator(given[0].operator)
    texts = [str(again.kernel(p.sketch, p.values)) for p in (given[0], kept[0])]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "options", [pytest.param([], marks=pytest.mark.slow), ["--within", "4"]]
)
def test_the_command(given, options, tmp_path):
    path = tmp_path / "programs.json"
    cost_programs.save(path, given, {})
    models = "trees,configuration,analytic,random"
    arguments = [str(path), "--operators", "product_row,softmax", "--models", models]
    found = CliRunner().invoke(cost_models.main, [*arguments, *options, "--json"])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)
    assert [r["model"] for r in rows] == models.split(",")
    for row in rows:
        assert set(row["pairs"]) == {"product_row", "softmax"}
        assert all(0 <= v <= 1 for v in row["pairs"].values())


def test_all_operators_have_sketches():
    for name in OPERATORS:
        assert Operator(name).sketches, name
