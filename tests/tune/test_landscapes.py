"""The landscapes that searches are compared on, and the comparison itself."""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks.search_methods import compared
from tilewright.testing.landscapes import (
    Landscape,
    LearningModel,
    bowl,
    cliffs,
    place_of,
    rugged,
)
from tilewright.tune.base import Sample


@pytest.mark.parametrize("time", [bowl, cliffs, rugged])
def test_programs_tell_their_places(time: object) -> None:
    land = Landscape((4, 3, 2), time)  # type: ignore[arg-type]
    for candidate in land:
        kernel = land.point(candidate).schedule.kernel
        assert place_of(kernel) == land.place(candidate)
        assert land.seconds(candidate) > 0
    assert len(list(land)) == land.size == 24


def test_the_model_learns_from_trials(tmp_path: Path) -> None:
    land = Landscape((8,) * 4, bowl)
    random = Random(0)
    drawn = [land.sample(random) for _ in range(160)]
    kernels = [land.point(c).schedule.kernel for c in drawn]
    model = LearningModel(land.sides)
    assert np.isinf(model.predict("t", kernels[:2]).spread).all()
    taken = [land.seconds(c) for c in drawn]
    model.update(
        [Sample("t", k, s) for k, s in zip(kernels[:119], taken, strict=False)]
    )
    model.update([Sample("t", kernels[119], inf)])
    found = model.predict("t", kernels[120:])
    assert np.corrcoef(found.cost, np.log(taken[120:]))[0, 1] > 0.7
    known = model.predict("t", kernels[:5]).spread
    assert known.max() < found.spread.mean()
    model.save(tmp_path / "model.npz")
    other = LearningModel(land.sides)
    other.load(tmp_path / "model.npz")
    other.update([])
    again = other.predict("t", kernels[120:])
    np.testing.assert_array_equal(again.cost, found.cost)


def test_methods_are_compared_by_their_trials() -> None:
    land = Landscape((8, 8), bowl)
    asked = argparse.Namespace(seeds=1, trials=64, effort=4)
    rows = {m: compared("small", land, m, 1.0, asked) for m in ("random", "annealing")}
    for row in rows.values():
        assert 1 <= row.trials <= 64 and row.near[-1] == 1.0
    assert compared("small", land, "random", 0.5, asked).trials == inf
