"""Running native code in a separate process, which may crash."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from tilewright.base import events, signals
from tilewright.base.guarded import Guarded, report_faults

T = TypeVar("T")
# Of processor time, after which code counts as such that does not end: others may be at work.
_SECONDS: Final = 120
# Expressions are walked by recursion; a long chain of operations is deep.
_DEPTH: Final = 50_000


def apart(
    work: Callable[[], T],
    places: Callable[[], Sequence[Guarded]],
    ended: Callable[[str], T],
) -> T:
    """What `work()` gives in a forked process, pickled; what it raises is raised here.

    places: the memory in which a fault is told by the tensor's name, asked for in that process when
    one happens. ended: the result where a fault or something else ends the process, from a line
    that says so.
    """
    read, write = os.pipe()
    with signals.held():
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _work(work, places, ended, write)
    os.close(write)
    status = 0
    try:
        with open(read, "rb") as stream:
            data = stream.read()
    except BaseException:  # Ctrl-C: nobody waits for the code any more
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        # A program that lets the system reap its children still waits for their end here.
        with suppress(ChildProcessError):
            _, status = os.waitpid(pid, 0)
    if not data:
        return ended(f"the process ended with {_reason(status)}")
    found, error = pickle.loads(data)
    if error is not None:
        raise error
    result: T = found
    return result


def _reason(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"code {status >> 8}"
    if os.WTERMSIG(status) == signal.SIGPROF:
        return f"no result after {_SECONDS} seconds of processor time"
    return f"signal {os.WTERMSIG(status)}"


def _work(
    work: Callable[[], T],
    places: Callable[[], Sequence[Guarded]],
    ended: Callable[[str], T],
    write: int,
) -> None:
    """The child's part: it never returns."""
    try:
        events.silence()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        sys.setrecursionlimit(_DEPTH)
        report_faults(places, lambda text: _send(write, lambda: ended(text)))
        _send(write, work)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(2)
    os._exit(0)


def _send(write: int, make: Callable[[], Any]) -> None:
    """What it makes and None, or None and what it raises."""
    sent: tuple[Any, Exception | None]
    try:
        sent = make(), None
    except Exception as error:
        sent = None, error
    data = pickle.dumps(sent)
    with open(write, "wb", closefd=False) as stream:
        stream.write(data)
