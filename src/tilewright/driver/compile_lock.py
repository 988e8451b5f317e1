"""The process-wide compilation lock, since the intern table is not locked."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.base import limits

_lock = threading.RLock()


def _after_fork() -> None:
    """A child never sees the end of a compilation that another thread of its parent was in."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def exclusive() -> Iterator[None]:
    """No other compilation meanwhile, no collector, and the limits of `base.limits` hold.

    Programs are immutable and have no cycles, so collecting garbage finds nothing but time.
    """
    with _lock, limits.compilation():
        was_on = gc.isenabled()
        try:
            gc.disable()
            yield
        finally:
            if was_on:
                gc.enable()
