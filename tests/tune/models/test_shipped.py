"""The model that this package ships: complete, small, read without LightGBM, of use to a search.

If its features change, these tests say how to train it and to record times again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tilewright.base.errors import InputError
from tilewright.tune.base import Prediction, Sample
from tilewright.tune.features.facts import Facts
from tilewright.tune.features.fast import Fast
from tilewright.tune.models import make, stored, trees
from tilewright.tune.models.learned import LearnedModel
from tilewright.tune.models.pretrained import SHIPPED, shipped
from tilewright.tune.models.transfer import transferred

RECORDED = Path(__file__).with_name("recorded.json")
AGAIN = "python -m benchmarks.search_methods --store S --fill 64, then benchmarks.search_store"
NEAR = 0.95
BATCH = 8


@pytest.fixture(scope="module")
def recorded():
    state = stored.read(RECORDED, "recorded times")
    assert state["features"] == Fast.version, f"record them again: {AGAIN}"
    return state


def test_it_is_small_and_its_card_is_complete():
    model = shipped(Facts())
    assert SHIPPED.stat().st_size < 2_000_000
    card = model.card
    assert card["command"].startswith("python -m benchmarks.pretrain train ")
    assert card["features"] == f"fast, version {Fast.version}"
    assert set(card["levels"]) == {"native", "x86-64-v3"}
    assert set(card["versions"]) >= {"tilewright", "llvmlite", "lightgbm", "numpy"}
    assert card["machines"] and card["how"]["prior"]
    assert card["programs"] == sum(card["statuses"].values()) > 5000
    rows = {row["kind"]: row for row in card["accuracy"]}
    assert len(rows) > 20 and card["kernels"] == rows["all"]["kernels"] > 300
    assert rows["all"]["pairs"] > 0.85


def test_it_is_read_without_lightgbm(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    model = make("pretrained", Facts())
    row = np.ones((3, len(Fast().columns)), np.float32)
    assert np.isfinite(model.judge(row).cost).all()


def test_compile_does_not_read_it(monkeypatch):
    monkeypatch.setattr(stored, "read", lambda *args: pytest.fail("it was read"))
    text = '<ir_version: 8, opset_import: ["": 17]>'
    text += "g (float[4, 5] a, float[5, 6] b) => (float[4, 6] y) { y = MatMul(a, b) }"
    tw.compile(onnx.parser.parse_model(text), threads=1, records=False)


def test_other_features_need_another_training(monkeypatch):
    monkeypatch.setattr(Fast, "version", Fast.version + 1)
    with pytest.raises(
        InputError, match=r"version 1 of the features 'fast', not 2"
    ) as e:
        make("trees-pretrained", Facts())
    assert "benchmarks.pretrain" in str(e.value)


class Rows:
    """Features of programs that are given as their features."""

    name, version = "rows", 1
    columns = Fast().columns

    def extract(self, row):
        return row[None]


class Judging:
    """The shipped model for such programs."""

    name = "judging"

    def __init__(self):
        self._model = shipped(Facts())
        self.unit = self._model.unit

    def predict(self, task, rows) -> Prediction:
        return self._model.judge(np.stack(rows))


def needed(model, rows, seconds):
    """Trials until 95% of the best, measuring those of least predicted cost, BATCH at a time."""
    left, done = list(range(1, len(rows))), 0  # without the default
    while left:
        cost = model.predict("t", [rows[n] for n in left]).cost
        chosen = [left[n] for n in np.argsort(cost, kind="stable")[:BATCH]]
        for n in chosen:
            done += 1
            if seconds[n] <= seconds.min() / NEAR:
                return done
        model.update([Sample("t", rows[n], seconds[n]) for n in chosen])
        left = [n for n in left if n not in chosen]
    raise AssertionError("the best is one of them")


@pytest.mark.parametrize("task", ["product_256", "conv3x3_64"])
def test_a_search_that_starts_from_it_needs_fewer_trials(recorded, task):
    """Recorded times: the default's neighbors and random schedules of an operator that is not
    among those it was trained on. By chance it takes (n + 1) / (good + 1) trials in the mean."""
    rows, seconds = recorded[task]["rows"], recorded[task]["seconds"]
    good = (seconds[1:] <= seconds.min() / NEAR).sum()
    by_chance = len(seconds) / (good + 1)
    with_it = needed(transferred(Judging(), Rows(), trees("rank")), rows, seconds)
    alone = needed(LearnedModel(Rows(), trees("rank")), rows, seconds)
    assert with_it <= 2
    assert 2 * with_it <= min(by_chance, alone)
