"""One compilation at a time: whatever interrupts it lets go of the lock and of the collector."""

import gc
import threading
from collections.abc import Iterator

import pytest

from tests.interrupts import at_every_moment
from tilewright.base import collector
from tilewright.driver import compile_lock


def another_thread_may_compile() -> bool:
    seen = []

    def work() -> None:
        seen.append(compile_lock._lock.acquire(blocking=False))
        if seen[0]:
            compile_lock._lock.release()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return seen[0]


def test_it_is_alone_and_without_a_collector() -> None:
    with compile_lock.exclusive():
        with compile_lock.exclusive():
            assert not gc.isenabled()
        assert not gc.isenabled() and not another_thread_may_compile()
    assert gc.isenabled() and another_thread_may_compile()


def test_an_interrupt_at_any_moment_lets_go() -> None:
    def action() -> None:
        with compile_lock.exclusive():
            pass

    for moment in at_every_moment(compile_lock.exclusive.__wrapped__, action):
        assert gc.isenabled() and another_thread_may_compile()
    assert moment > 3


MANY = 50_000


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As outside of the tests; see tests/conftest.py."""
    monkeypatch.setattr(collector, "_MANY", MANY)


@pytest.fixture
def thawed() -> Iterator[None]:
    """Without the objects that tests/conftest.py froze."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("counting", "thawed")
def test_what_a_compilation_made_is_not_looked_through_at_once() -> None:
    with compile_lock.exclusive():
        made = [[] for _ in range(2 * MANY)]
    assert gc.get_count()[0] < 1000 and gc.get_freeze_count() == 0
    assert any(o is made for o in gc.get_objects(generation=2))


@pytest.mark.usefixtures("counting")
def test_what_the_program_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with compile_lock.exclusive():
        made = [[] for _ in range(2 * MANY)]
    assert made and gc.get_freeze_count() == frozen > 0


@pytest.mark.usefixtures("counting")
def test_frozen_objects_are_not_counted_for_a_small_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counting takes as long as there are frozen objects."""
    counted: list[int] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(0) or 1)
    with compile_lock.exclusive():
        pass
    assert not counted
    with compile_lock.exclusive():
        made = [[] for _ in range(2 * MANY)]
    assert made and counted
