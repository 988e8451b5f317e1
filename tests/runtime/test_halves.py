"""Work on a range by two threads: all of it is done, once, and errors are raised."""

from __future__ import annotations

import threading
import time

import pytest

from tilewright.runtime import halves
from tilewright.runtime.halves import in_halves


@pytest.mark.parametrize("middle", [0, 1, 4, 9, 10])
@pytest.mark.parametrize("processors", [1, 2])
def test_each_part_is_done_once(
    middle: int, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves, "affinity", lambda: frozenset(range(processors)))
    done: list[int] = []
    threads: set[int] = set()

    def work(first: int, end: int) -> None:
        if first:
            time.sleep(0.01)  # longer than the first part
        done.extend(range(first, end))
        threads.add(threading.get_ident())

    before = threading.active_count()
    in_halves(work, 10, middle)
    assert sorted(done) == list(range(10))
    assert (threading.get_ident() in threads) and threading.active_count() == before
    assert len(threads) == (processors if 0 < middle < 10 else 1)


@pytest.mark.parametrize("first", [0, 5])
def test_an_error_of_either_part_is_raised(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halves, "affinity", lambda: frozenset(range(2)))

    def work(begin: int, end: int) -> None:
        if begin == first:
            raise ValueError(f"from {first}")

    with pytest.raises(ValueError, match=f"from {first}"):
        in_halves(work, 10, 5)


def test_without_a_thread_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(halves, "affinity", lambda: frozenset(range(2)))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[range] = []
    in_halves(lambda first, end: done.append(range(first, end)), 10, 5)
    assert sorted(n for part in done for n in part) == list(range(10))
