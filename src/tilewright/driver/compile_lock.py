"""The process-wide compilation lock: one collector to pause, one thread that may fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilewright.base import collector, limits

_lock = threading.RLock()
_left: list[threading.Thread] = []


def _after_fork() -> None:
    """Reset the lock: the parent's other threads, which may hold it, do not exist in a child."""
    global _lock
    _lock = threading.RLock()
    _left.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def exclusive() -> Iterator[None]:
    """Exclude other compilations, pause the garbage collector, and enforce `base.limits`.

    First wait for the work that earlier compilations left to threads, because processes are forked
    only while no other thread works.
    """
    with _lock, limits.compilation():
        while _left:
            _left.pop().join()
        with collector.paused():
            yield


def afterwards(work: Callable[[], object]) -> None:
    """Do `work` in a thread, while the caller continues with the compiled model.

    The next compilation and the end of the process wait for it. If no thread can be started, as at
    the end of the process, the caller does the work itself.
    """
    thread = threading.Thread(target=work, name="tilewright-afterwards")
    try:
        thread.start()
    except RuntimeError:
        work()
    else:
        _left.append(thread)
