"""The process-wide compilation lock, since the intern table is not locked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilewright.base import collector, limits

_lock = threading.RLock()
_left: list[threading.Thread] = []


def _after_fork() -> None:
    """A child never sees the end of what another thread of its parent was in."""
    global _lock
    _lock = threading.RLock()
    _left.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def exclusive() -> Iterator[None]:
    """No other compilation meanwhile, no collector, and the limits of `base.limits` hold.

    What the one before left to do is done first: processes are forked only where no thread works.
    """
    with _lock, limits.compilation():
        while _left:
            _left.pop().join()
        with collector.paused():
            yield


def afterwards(work: Callable[[], object]) -> None:
    """Do `work` in a thread, while the caller goes on with what was compiled.

    The next compilation waits for it, and so does the end of the process. Where the system gives
    no thread, as at the end of the process, the caller waits, too.
    """
    thread = threading.Thread(target=work, name="tilewright-afterwards")
    try:
        thread.start()
    except RuntimeError:
        work()
    else:
        _left.append(thread)
