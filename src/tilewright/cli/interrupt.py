"""Ctrl-C when Python wraps it in another error, only prints it, or does not see it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MOMENT: Final = 0.01  # seconds
_PATIENCE: Final = 1.0  # seconds that native code has to return
_SHOW_CURSOR: Final = "\r\x1b[K\x1b[?25h"  # which a progress bar hides


def behind(error: BaseException | None) -> bool:
    """Whether an interrupt caused the error: during the creation of a class, for example."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def sent_again() -> Iterator[None]:
    """An interrupt during a finalizer, which cannot raise, is repeated a moment later."""
    others, alarm = sys.unraisablehook, signal.getsignal(signal.SIGALRM)

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # Not at once: it would interrupt this hook.
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, _MOMENT)
        else:
            others(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = others
        if signal.getsignal(signal.SIGALRM) is signal.default_int_handler:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)


@contextmanager
def native_code() -> Iterator[None]:
    """A block that Ctrl-C ends though it is in native code, which Python waits for to return.

    If the block does not end within a second, the process exits. So nothing may be half
    written in it, and no process forked: a thread watches.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    over = threading.Event()

    def watch() -> None:
        while number := os.read(reading, 1):
            if number[0] == signal.SIGINT and not over.wait(_PATIENCE):
                cursor = _SHOW_CURSOR if sys.stderr and sys.stderr.isatty() else ""
                os.write(2, f"{cursor}tilewright: interrupted\n".encode())
                os._exit(1)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        watcher.join()
        os.close(reading)
