"""One compilation at a time: whatever interrupts it lets go of the lock and of the collector."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from tests.interrupts import at_every_moment
from tilewright.base import collector
from tilewright.driver import compile_lock
from tilewright.runtime import bundle


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


def test_work_beside_the_caller_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """In proportion to what it worked since the last pause, up to a most."""
    waited: list[float] = []
    monkeypatch.setattr(compile_lock, "_SHARE", 0.25)
    monkeypatch.setattr(compile_lock, "_LONGEST", 10.0)
    pauses = compile_lock.Pauses()
    monkeypatch.setattr(pauses, "_awaited", Mock(wait=waited.append))
    for seconds in (1.0, 3.0, 8.0):
        monkeypatch.setattr(compile_lock, "time", Mock(thread_time=lambda s=seconds: s))
        pauses.pause()
    assert waited == [4.0, 8.0, 10.0]


def test_who_waits_ends_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has begun, too."""
    monkeypatch.setattr(compile_lock, "_SHARE", 1e-9)
    monkeypatch.setattr(compile_lock, "_LONGEST", 60.0)
    began, done = threading.Event(), []

    def work(pause: bundle.Pause) -> None:
        began.set()
        pause()
        pause()
        done.append(1)

    compile_lock.afterwards(work)
    assert began.wait(60)
    time.sleep(0.1)
    assert not done
    start = time.perf_counter()
    compile_lock.settle()
    assert done and time.perf_counter() - start < 30


def test_after_an_interrupt_the_work_is_waited_for_again() -> None:
    def action() -> None:
        compile_lock.afterwards(lambda pause: time.sleep(0.05))
        compile_lock.settle()

    for moment in at_every_moment(compile_lock.settle, action):
        left = [t for t in threading.enumerate() if t.name == "tilewright-afterwards"]
        known = [work.thread for work in compile_lock._left]
        assert set(left) <= set(known)
        compile_lock.settle()
    assert moment > 3


def test_an_interrupt_while_work_is_left_leaves_no_unknown_thread() -> None:
    """The work is done once at most, and done if the compilation knows of it."""
    done: list[int] = []

    def action() -> None:
        compile_lock.afterwards(lambda pause: (time.sleep(0.02), done.append(1)))

    for moment in at_every_moment(compile_lock.afterwards, action):
        left = [t for t in threading.enumerate() if t.name == "tilewright-afterwards"]
        known = [work.thread for work in compile_lock._left]
        assert set(left) <= set(known)
        compile_lock.settle()
        assert len(done) == len(known)
        done.clear()
    assert moment > 3


def test_work_whose_thread_never_began_is_done_by_who_waits() -> None:
    done: list[int] = []
    work = compile_lock.LeftWork(lambda pause: done.append(1))
    compile_lock._left.append(work)
    compile_lock.settle()
    assert done == [1] and not compile_lock._left
    work.thread.start()
    work.thread.join()
    assert done == [1]


def test_without_a_thread_the_caller_does_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", start)
    compile_lock.afterwards(lambda pause: done.append(1))
    assert done == [1] and not compile_lock._left


def test_several_may_wait() -> None:
    """For the same work; each returns after its end."""
    begin, done = threading.Event(), list[int]()

    def work(pause: bundle.Pause) -> None:
        begin.wait(60)
        done.append(1)

    def wait() -> None:
        compile_lock.settle()
        done.append(len(done))

    compile_lock.afterwards(work)
    waiting = [threading.Thread(target=wait) for _ in range(2)]
    for thread in waiting:
        thread.start()
    time.sleep(0.1)
    assert not done
    begin.set()
    for thread in waiting:
        thread.join()
    assert done == [1, 1, 2] and not compile_lock._left


def test_the_end_of_the_process_ends_the_pauses() -> None:
    code = (
        "from tilewright.driver import compile_lock\n"
        "compile_lock._SHARE = 1e-9\n"
        "def work(pause):\n"
        "    for _ in range(1200):\n"
        "        pause()\n"
        "    print('done')\n"
        "compile_lock.afterwards(work)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90
    )
    assert (run.stdout, run.stderr) == ("done\n", "")


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
