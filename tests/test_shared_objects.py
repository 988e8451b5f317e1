"""Object files that the tests share: those of equal modules, for equal machines and levels."""

import os
from dataclasses import replace
from pathlib import Path

from tests.shared_objects import UNUSED, delete_unused, shared
from tilewright.targets.cpu.machine import host


def test_equal_modules_are_made_once_and_others_by_themselves(tmp_path: Path) -> None:
    made = []

    def make(*asked: object) -> bytes:
        made.append(asked)
        return f"{len(made)}".encode()

    machine = host()
    lesser = replace(machine, features=machine.features[1:])
    requests = [
        ("a", machine, 2),
        ("b", machine, 2),
        ("a", machine, 0),
        ("a", lesser, 2),
    ]
    for _ in range(2):
        for worker in (shared(make, tmp_path), shared(make, tmp_path)):
            assert [worker(*r) for r in requests] == [b"1", b"2", b"3", b"4"]
    assert made == requests


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    made = shared(lambda *_: b"code", tmp_path / "missing")
    assert made("a", host(), 2) == b"code"


def test_what_no_test_asks_for_any_more_is_deleted(tmp_path: Path) -> None:
    made = shared(lambda module, *_: module.encode(), tmp_path)
    (a,) = (made("a", host(), 2), *tmp_path.iterdir())[1:]
    made("b", host(), 2)
    for file in tmp_path.iterdir():
        os.utime(file, (0, file.stat().st_mtime - 2 * UNUSED))
    assert made("a", host(), 2) == b"a"  # which uses it
    delete_unused(tmp_path)
    assert list(tmp_path.iterdir()) == [a]
