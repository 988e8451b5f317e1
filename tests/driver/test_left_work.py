"""Work that a compilation leaves to a thread: done once, with pauses, and waited for."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from unittest.mock import Mock

import pytest

from tests.interrupts import at_every_moment
from tilewright.driver import compile_lock, left_work
from tilewright.runtime import bundle


def test_work_beside_the_caller_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """In proportion to what it worked since the last pause, up to a most."""
    waited: list[float] = []
    monkeypatch.setattr(left_work, "_SHARE", 0.25)
    monkeypatch.setattr(left_work, "_LONGEST", 10.0)
    pauses = left_work.Pauses()
    monkeypatch.setattr(pauses, "_awaited", Mock(wait=waited.append))
    for seconds in (1.0, 3.0, 8.0):
        monkeypatch.setattr(left_work, "time", Mock(thread_time=lambda s=seconds: s))
        pauses.pause()
    assert waited == [4.0, 8.0, 10.0]


def test_who_waits_ends_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has begun, too."""
    monkeypatch.setattr(left_work, "_SHARE", 1e-9)
    monkeypatch.setattr(left_work, "_LONGEST", 60.0)
    began, done = threading.Event(), []

    def work(pause: bundle.Pause) -> None:
        began.set()
        pause()
        pause()
        done.append(1)

    left_work.afterwards(work)
    assert began.wait(60)
    time.sleep(0.1)
    assert not done
    start = time.perf_counter()
    left_work.settle()
    assert done and time.perf_counter() - start < 30


def test_after_an_interrupt_the_work_is_waited_for_again() -> None:
    def action() -> None:
        left_work.afterwards(lambda pause: time.sleep(0.05))
        left_work.settle()

    for moment in at_every_moment(left_work.settle, action):
        left = [t for t in threading.enumerate() if t.name == "tilewright-afterwards"]
        known = [work.thread for work in left_work._left]
        assert set(left) <= set(known)
        left_work.settle()
    assert moment > 3


def test_an_interrupt_while_work_is_left_leaves_no_unknown_thread() -> None:
    """The work is done once at most, and done if the compilation knows of it."""
    done: list[int] = []

    def action() -> None:
        left_work.afterwards(lambda pause: (time.sleep(0.02), done.append(1)))

    for moment in at_every_moment(left_work.afterwards, action):
        left = [t for t in threading.enumerate() if t.name == "tilewright-afterwards"]
        known = [work.thread for work in left_work._left]
        assert set(left) <= set(known)
        left_work.settle()
        assert len(done) == len(known)
        done.clear()
    assert moment > 3


def test_work_whose_thread_never_began_is_done_by_who_waits() -> None:
    done: list[int] = []
    work = left_work.LeftWork(lambda pause: done.append(1))
    left_work._left.append(work)
    left_work.settle()
    assert done == [1] and not left_work._left
    work.thread.start()
    work.thread.join()
    assert done == [1]


def test_what_was_done_is_not_kept() -> None:
    """The work holds a model, which may be large."""
    model = type("Model", (), {})()
    held = weakref.ref(model)
    left_work.afterwards(lambda pause, model=model: None)  # type: ignore[misc]
    left_work._left[-1].thread.join()
    del model
    gc.collect()
    assert held() is None
    left_work.settle()


def test_several_may_wait() -> None:
    """For the same work; each returns after its end."""
    begin, done = threading.Event(), list[int]()

    def work(pause: bundle.Pause) -> None:
        begin.wait(60)
        done.append(1)

    def wait() -> None:
        left_work.settle()
        done.append(len(done))

    left_work.afterwards(work)
    waiting = [threading.Thread(target=wait) for _ in range(2)]
    for thread in waiting:
        thread.start()
    time.sleep(0.1)
    assert not done
    begin.set()
    for thread in waiting:
        thread.join()
    assert done == [1, 1, 2] and not left_work._left


def test_the_end_of_the_process_ends_the_pauses() -> None:
    code = (
        "from tilewright.driver import left_work\n"
        "left_work._SHARE = 1e-9\n"
        "def work(pause):\n"
        "    for _ in range(1200):\n"
        "        pause()\n"
        "    print('done')\n"
        "left_work.afterwards(work)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90
    )
    assert (run.stdout, run.stderr) == ("done\n", "")


def test_a_system_without_threads_has_the_caller_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", none)
    left_work.afterwards(lambda pause: done.append(pause() or 1))
    assert done == [1]
    monkeypatch.undo()
    with compile_lock.exclusive():  # waits for no thread that never began
        assert done == [1]


def test_a_child_process_has_no_work_of_its_parent() -> None:
    """Its thread does not exist there."""
    begin = threading.Event()
    left_work.afterwards(lambda pause: begin.wait(60))
    child = os.fork()
    if not child:
        os._exit(len(left_work._left))
    status, left = os.waitpid(child, 0)[1], len(left_work._left)
    begin.set()
    left_work.settle()
    assert (status, left) == (0, 1)
