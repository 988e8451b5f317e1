"""Object files that the tests share: those of equal assembly, for equal machines and levels."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shared_objects import UNUSED, delete_unused, shared
from tilewright.targets.cpu import compile as cpu
from tilewright.targets.cpu import lone_lanes
from tilewright.targets.cpu.machine import host
from tilewright.targets.llvm import backend


def test_equal_texts_are_made_once_and_others_by_themselves(tmp_path: Path) -> None:
    made = []

    def make(*asked: object) -> bytes:
        made.append(asked)
        return f"{len(made)}".encode()

    machine = host()
    lesser = replace(machine, features=machine.features[1:])
    requests = [
        ("a", machine, "here", 2),
        ("b", machine, "here", 2),
        ("a", machine, "here", 0),
        ("a", lesser, "here", 2),
    ]
    for _ in range(2):
        for worker in (shared(make, tmp_path), shared(make, tmp_path)):
            assert [worker(*r) for r in requests] == [b"1", b"2", b"3", b"4"]
    assert made == requests


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    made = shared(lambda *_: b"code", tmp_path / "missing")
    assert made("a", host(), "here", 2) == b"code"


def test_what_no_test_asks_for_any_more_is_deleted(tmp_path: Path) -> None:
    made = shared(lambda text, *_: text.encode(), tmp_path)
    (a,) = (made("a", host(), "here", 2), *tmp_path.iterdir())[1:]
    made("b", host(), "here", 2)
    for file in tmp_path.iterdir():
        os.utime(file, (0, file.stat().st_mtime - 2 * UNUSED))
    assert made("a", host(), "here", 2) == b"a"  # which uses it
    delete_unused(tmp_path)
    assert list(tmp_path.iterdir()) == [a]


def test_a_fault_in_what_makes_them_makes_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    by = shared(lambda *_: made.append(1) or b"code", tmp_path)
    seeds = [
        (backend, "CHEAP", ()),
        (backend.module_of, "__code__", (lambda text, target, where: None).__code__),
        (cpu.optimized, "__code__", (lambda *_: None).__code__),
        (lone_lanes, "_CONSTANT", re.compile("")),
    ]
    for seed in seeds:
        by("a", host(), "here", 2)
        with monkeypatch.context() as seeded:
            seeded.setattr(*seed)
            by("a", host(), "here", 2)
    assert len(made) == 1 + len(seeds)
