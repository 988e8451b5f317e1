"""The process-wide compilation lock: one collector to pause, one thread that may fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.base import collector, limits
from tilewright.driver.left_work import settle

_lock = threading.RLock()


def _after_fork() -> None:
    """Reset the lock: the parent's other threads, which may hold it, do not exist in a child."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def exclusive() -> Iterator[None]:
    """Exclude other compilations, pause the garbage collector, and enforce `base.limits`.

    First wait for the work that earlier compilations left to threads, because processes are forked
    only while no other thread works.
    """
    with _lock, limits.compilation():
        settle()
        with collector.paused():
            yield
