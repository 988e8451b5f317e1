"""Work that compilations leave to threads, such as writing a model to the cache."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tilewright.runtime.bundle import Pause

_left: list[LeftWork] = []
_SHARE: Final = 1 / 16  # of one processor that work beside the caller's takes
_LONGEST: Final = 0.1  # seconds that the end of the process may wait for a pause


class Pauses:
    """The pauses of work beside the caller's: calls of a model on all processors wait for the
    slowest, and so are twice as slow if one of these has as much other work."""

    def __init__(self) -> None:
        self._awaited = threading.Event()
        self._worked = 0.0

    def pause(self) -> None:
        """Wait so that the work takes its share, unless somebody waits for its end.

        For the thread that works; now and then.
        """
        if not threading.main_thread().is_alive():  # the process waits for its threads
            return
        worked = time.thread_time() - self._worked
        self._awaited.wait(min(worked / _SHARE, _LONGEST))
        self._worked = time.thread_time()

    def end(self) -> None:
        """Somebody waits: no pauses from now on."""
        self._awaited.set()


class LeftWork:
    """Work that a compilation left to a thread. Who comes first does it, all others wait for it."""

    def __init__(self, work: Callable[[Pause], object]) -> None:
        self._work: Callable[[Pause], object] | None = work
        self._lock = threading.Lock()
        self.pauses = Pauses()
        self.thread = threading.Thread(target=self.run, name="tilewright-afterwards")

    def run(self) -> None:
        """Do the work, or wait for its end if somebody has begun it."""
        with self._lock:
            # Not kept: it holds a model.
            work, self._work = self._work, None
            if work is not None:
                work(self.pauses.pause)

    def finish(self) -> None:
        """As `run`, and without pauses; the thread has ended then."""
        self.pauses.end()
        self.run()  # an interrupt may have come before its thread was started
        if self.thread.ident is not None:
            self.thread.join()


def settle() -> None:
    """Wait for the work that compilations left to threads; it goes on without pauses."""
    while _left:
        first = _left[0]
        first.finish()
        # Only now: after an interrupt it is waited for again. Another thread may wait, too.
        with suppress(ValueError):
            _left.remove(first)


def afterwards(work: Callable[[Pause], object]) -> None:
    """Do `work` in a thread, while the caller continues with the compiled model.

    work: its argument is to be called now and then, and pauses. The next compilation and the end of
    the process wait for the work. If no thread can be started, as at the end of the process, the
    caller does the work itself.
    """
    left = LeftWork(work)
    # Before it starts: no interrupt leaves a thread that nobody knows.
    _left.append(left)
    try:
        left.thread.start()
    except RuntimeError:
        settle()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_left.clear)  # the threads are the parent's
