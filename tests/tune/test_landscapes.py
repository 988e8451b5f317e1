"""The landscapes that searches are compared on, and the comparison itself."""

from __future__ import annotations

import argparse
import json
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks.search_methods import compared, least
from tilewright.base.errors import InputError, ScheduleError
from tilewright.testing.landscapes import (
    Landscape,
    LearningModel,
    bowl,
    cliffs,
    place_of,
    rugged,
)
from tilewright.testing.recorded import Recorded, read
from tilewright.tune.base import Candidate, Sample

KEYS = [
    Candidate("a", {"tile": [2, 4], "unroll": True}).key,
    Candidate("a", {"tile": [2, 8], "unroll": False}).key,
    Candidate("b", {"unroll": True}).key,
]


@pytest.mark.parametrize("time", [bowl, cliffs, rugged])
def test_programs_tell_their_places(time: object) -> None:
    land = Landscape((4, 3, 2), time)  # type: ignore[arg-type]
    for candidate in land:
        kernel = land.point(candidate).schedule.kernel
        assert place_of(kernel) == land.place(candidate)
        assert land.seconds(candidate) > 0
    assert len(list(land)) == land.size == 24


def test_a_recorded_landscape_has_what_was_measured_and_no_more(tmp_path: Path) -> None:
    times = dict(zip(KEYS, (3.0, 1.0, 2.0), strict=True))
    path = tmp_path / "times.jsonl"
    rows = [json.dumps({"key": key, "seconds": s}) for key, s in times.items()]
    path.write_text("\n".join(rows))
    land = read(path)
    assert sorted(land.times.values()) == [1.0, 2.0, 3.0]
    assert land.seconds(land.default()) == 3.0 and least(land) == 1.0
    random = Random(0)
    for candidate in (land.sample(random), land.default()):
        for found in (land.neighbor(candidate, random), candidate):
            assert land.place(found) in land.times
    holes = [c for c in land if land.place(c) not in land.times]
    with pytest.raises(ScheduleError, match="is rejected"):
        land.point(holes[0])


def test_lines_that_are_no_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    path.write_text(json.dumps({"key": KEYS[0], "seconds": 1.0}) + '\n{"key": 5}')
    with pytest.raises(InputError, match="line 2 is not a record"):
        read(path)
    with pytest.raises(InputError, match="no records"):
        Recorded({})


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
