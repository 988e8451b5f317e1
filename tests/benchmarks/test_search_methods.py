"""Searches of operators share the times of programs, which a file keeps."""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path

import pytest

from benchmarks.search_methods import searched
from benchmarks.search_store import (
    LEAST,
    MeasuredStore,
    fill,
    program_of,
    settle,
    task_of,
)
from tilewright.base.errors import InputError
from tilewright.tune.base import Candidate, Job, Measurement, Status, Task
from tilewright.tune.building import Built, Numbered


class Bench:
    """Seconds by the digest of a program; the fifth crashes."""

    def __init__(self) -> None:
        self.measured: list[str] = []

    def __call__(self, task: Task, points: list[Numbered]) -> Iterator[Built]:
        for number, point in points:
            self.measured.append(program_of(task, point))
            if len(self.measured) == 5:
                yield number, Measurement(Status.CRASH, reason="it ended")
            else:
                taken = self.seconds(self.measured[-1])
                yield number, Measurement(Status.OK, (taken,))

    @staticmethod
    def seconds(digest: str) -> float:
        """From 1 to 2."""
        return 1 + zlib.crc32(digest.encode()) / 2**32


@pytest.fixture(scope="module")
def task() -> Task:
    return task_of("row_sums")


def test_a_program_is_measured_once_and_kept(task: Task, tmp_path: Path) -> None:
    path, bench = tmp_path / "times.jsonl", Bench()
    store = MeasuredStore(path, bench)
    fill(store, task, 12)
    assert len(bench.measured) == len(set(bench.measured)) == len(store.times) > 5
    assert list(store.times.values()).count(inf) == 1
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"program": "cut o')  # by a kill
    again = MeasuredStore(path, bench)
    assert again.times == store.times and path.read_bytes() == whole
    fill(again, task, 12)
    assert len(bench.measured) == len(store.times)
    row = json.loads(whole.splitlines()[0])
    point = task.schedule(Candidate.parse(row["key"]))
    assert program_of(task, point) == row["program"]
    path.write_bytes(b"[]\n")
    with pytest.raises(InputError, match="line 1 is not a measured program"):
        MeasuredStore(path, bench)


def test_methods_end_near_the_best_of_all(task: Task, tmp_path: Path) -> None:
    bench = Bench()
    store = MeasuredStore(tmp_path / "times.jsonl", bench)
    asked = argparse.Namespace(seeds=1, trials=24, effort=2, fill=0, least=6)
    found = searched("row_sums", store, ("random", "bandit"), asked)
    assert found.best == store.best == min(store.times.values())
    assert found.programs == len(bench.measured) < 48
    reached = [t for t in found.trials.values() if t < inf]
    assert reached and max(reached) <= 24
    again = searched("row_sums", store, ("random", "bandit"), asked)
    assert again == found and found.programs == len(bench.measured)


class Disturbed:
    """A workshop whose first `lucky` times of each program are 1 s; all later ones are those of a
    bench. turns: the programs of each round."""

    def __init__(self, bench: Bench, lucky: int) -> None:
        self._bench, self._lucky = bench, lucky
        self.turns: list[list[str]] = []

    def built(self, task: Task, points: Iterable[Numbered]) -> Iterator[Built]:
        for number, point in points:
            yield number, Job(number, program_of(task, point).encode())

    def measured(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        self.turns.append([])
        for job in jobs:
            digest = job.artifact.decode()
            self.turns[-1].append(digest)
            lucky = len(self.turns) <= self._lucky
            taken = 1.0 if lucky else self._bench.seconds(digest)
            yield job.number, Measurement(Status.OK, (taken,))


@pytest.fixture(name="lucky")
def with_a_lucky_program(task: Task, tmp_path: Path) -> tuple[MeasuredStore, str]:
    """A store of 12 programs, the slowest of which was recorded as the fastest."""
    path, bench = tmp_path / "times.jsonl", Bench()
    fill(MeasuredStore(path, bench), task, 12)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    slowest = max((r for r in rows if r["seconds"]), key=lambda r: r["seconds"])
    slowest["seconds"] = 0.5
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = MeasuredStore(path, bench)
    assert store.near(0.95) == {slowest["program"]}
    return store, slowest["program"]


def test_times_settle_until_it_is_clear_which_are_near(
    task: Task, lucky: tuple[MeasuredStore, str]
) -> None:
    store, digest = lucky
    failed = [d for d, taken in store.times.items() if taken == inf]
    shop = Disturbed(Bench(), 0)
    used = settle(store, task, shop, 9)
    assert store.times[digest] == max(t for t in store.times.values() if t < inf)
    assert digest not in store.near(0.95)
    assert [store.rounds[d] for d in failed] == [[inf]]
    whole = [turn for turn in shop.turns if len(turn) > 8]
    assert len(whole) == LEAST - 1 and whole[0] == whole[1][::-1]
    assert used == len(shop.turns) == LEAST  # and one round of those that contend
    assert set(shop.turns[-1]) == store.near(0.9)
    again = MeasuredStore(store.path, Bench())
    assert again.times == store.times and again.candidates == store.candidates


def test_what_changes_is_measured_on_and_rounds_are_limited(
    task: Task, lucky: tuple[MeasuredStore, str]
) -> None:
    store, _ = lucky
    shop = Disturbed(Bench(), LEAST - 1)  # at first all seem to be the best
    assert settle(store, task, shop, LEAST - 1) == LEAST - 1
    near = store.near(0.95)
    assert len(near) > 8
    assert settle(store, task, shop, 9) > 2
    assert store.near(0.95) < near
    assert settle(store, task, shop, 0) == 0
