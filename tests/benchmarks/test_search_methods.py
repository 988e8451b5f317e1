"""Searches of operators share the times of programs, which a file keeps."""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from benchmarks.search_methods import searched
from benchmarks.search_store import MeasuredStore, fill, program_of, task_of
from tilewright.base.errors import InputError
from tilewright.tune.base import Candidate, Measurement, Status, Task
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
                taken = 1 + zlib.crc32(self.measured[-1].encode()) / 2**32
                yield number, Measurement(Status.OK, (taken,))


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
