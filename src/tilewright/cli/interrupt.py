"""Ctrl-C at moments where Python wraps it in another error, or only prints it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MOMENT: Final = 0.01  # seconds


def behind(error: BaseException | None) -> bool:
    """Whether an interrupt is what led to the error: it met the making of a class, for example."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def sent_again() -> Iterator[None]:
    """One that meets a finalizer, out of which nothing is raised, comes again a moment later."""
    others, alarm = sys.unraisablehook, signal.getsignal(signal.SIGALRM)

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # Not at once: it would meet this hook.
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
