"""Waiting for other processes and threads: only what hangs fails, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds until something is given up. No result depends on it.
PATIENCE = 600.0


def until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds; AssertionError where it never does."""
    end = time.monotonic() + PATIENCE
    pause = 0.001
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.02)
