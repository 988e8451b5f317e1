"""Searches are replayed on recorded times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from statistics import median

import pytest

from benchmarks.search_replay import (
    Asked,
    RecordedSpace,
    Recording,
    Row,
    compared,
    halved,
    recording,
    show,
    stored,
    trials,
)
from benchmarks.search_store import MeasuredStore, fill, task_of
from tilewright.base.errors import InputError
from tilewright.tune.base import Candidate, Measurement, Status, Task
from tilewright.tune.building import Built, Numbered

FILLED = 24


def measure(task: Task, points: list[Numbered]) -> Iterator[Built]:
    """A program takes a second more than the one before it."""
    for number, _ in points:
        yield number, Measurement(Status.OK, (1.0 + number % 16,))


@pytest.fixture(scope="module")
def task() -> Task:
    return task_of("row_sums")


@pytest.fixture(scope="module", name="recorded")
def record(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path = tmp_path_factory.mktemp("replay") / "row_sums.jsonl"
    fill(MeasuredStore(path, measure), task, FILLED)
    return recording(task, stored(path, task, 0), FILLED)


def test_neighbors_differ_least_and_children_are_others() -> None:
    held = [
        Candidate("s", {"a": a, "b": b, "c": 0}) for a in range(4) for b in range(4)
    ]
    space, random = RecordedSpace(held, held[:2]), Random(0)
    seen = {space.neighbor(held[5], random) for _ in range(200)}
    alike = {c for c in held if (c.values["a"] == 1) != (c.values["b"] == 1)}
    assert alike < seen and held[5] not in seen and len(seen) == 8
    assert {space.sample(random) for _ in range(50)} == set(held[:2])
    a, b = held[0], held[15]
    children = [space.cross(a, b, random) for _ in range(100)]
    assert a not in children and b not in children
    assert held[3] in children and held[12] in children
    assert space.starting(b).default() == b and space.default() == a


def test_draws_and_the_default_are_found_again(
    task: Task, recorded: Recording, tmp_path: Path
) -> None:
    assert recorded.default is not None
    assert recorded.near(recorded.default) == 1.0  # it was measured first
    assert recorded.best == 1.0 and len(recorded.seconds) > 8
    assert recorded.default not in recorded.drawn and len(recorded.drawn) >= 8
    path = tmp_path / "few.jsonl"
    fill(MeasuredStore(path, measure), task, 2)
    with pytest.raises(InputError, match="draws were measured"):
        recording(task, stored(path, task, 0), FILLED)


def test_times_of_other_programs_do_not_count(
    task: Task, recorded: Recording, tmp_path: Path
) -> None:
    """As of a version whose sketches made other programs of some choices: of every fifth one."""
    path = tmp_path / "older.jsonl"
    store = MeasuredStore(path, measure)
    fill(store, task, FILLED)
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows[::5]:
        row["program"] = row["program"][::-1]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    older = recording(task, stored(path, task, 0), FILLED)
    gone = {row["key"] for row in rows[::5]}
    assert older.seconds.keys() == recorded.seconds.keys() - gone
    assert older.default is None  # it was measured first
    assert set(older.drawn) < set(recorded.drawn)
    asked = Asked(("random",), seeds=1, trials=64, effort=2, random=True)
    row = compared("x", older, asked)
    assert row.default is None and row.trials["random"] < inf
    show(row)
    with pytest.raises(InputError, match="default's program was not measured"):
        trials(older, "random", 0, replace(asked, random=False))


def test_trials_are_counted_from_the_first(recorded: Recording) -> None:
    asked = Asked(("random",), seeds=3, trials=64, effort=2, random=False)
    assert trials(recorded, "random", 0, asked) == 1
    lucky = recorded.drawn[-1]
    seconds = dict.fromkeys(recorded.seconds, 9.0) | {lucky.key: 1.0}
    far = replace(recorded, seconds=seconds)
    needed = [trials(far, "random", seed, asked) for seed in range(3)]
    assert all(1 < n <= len(seconds) for n in needed)
    assert compared("x", far, asked).trials == {"random": median(needed)}
    assert trials(far, "random", 0, replace(asked, trials=1)) == inf
    here = [trials(far, "random", s, replace(asked, random=True)) for s in range(9)]
    assert recorded.default is not None
    hidden = dict.fromkeys(seconds, 9.0) | {recorded.default.key: 1.0}
    unlucky = replace(recorded, seconds=hidden)
    assert trials(unlucky, "random", 0, replace(asked, random=True)) == inf
    begins = [Random(s).choice(far.drawn) == lucky for s in range(9)]
    assert [n == 1 for n in here] == begins


def test_at_most_half_the_trials() -> None:
    def row(a: float, b: float) -> Row:
        return Row("x", 1.0, 9, 0.9, 4, 0.0, {"a": a, "b": b})

    rows = [row(2, 4), row(3, 5), row(64, inf), row(inf, inf)]
    assert halved(rows, "a", "b") == 2 and halved(rows, "b", "a") == 0
