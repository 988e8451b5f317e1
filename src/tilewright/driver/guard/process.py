"""Runs native code in a separate process, which may crash."""

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
# Processor time after which code counts as not terminating. Wall time depends on other processes.
_SECONDS: Final = 120
# Expressions are traversed recursively, and a long chain of operations is deep.
_DEPTH: Final = 50_000


def apart(
    work: Callable[[], T],
    places: Callable[[], Sequence[Guarded]],
    ended: Callable[[str], T],
) -> T:
    """Run `work()` in a forked process; return its result, or raise its exception, via pickle.

    places: returns the memory in which faults are reported by tensor name; called in the forked
    process when a fault occurs. ended: makes the result from a line of text if a fault or anything
    else ends the process.
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
    except BaseException:  # Ctrl-C: the result is no longer needed
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        # In a program that lets the system reap its children, waitpid waits for them, then raises.
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
    """The child's part. It never returns."""
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
    """Send (the result of `make`, None) or (None, the exception that it raised)."""
    sent: tuple[Any, Exception | None]
    try:
        sent = make(), None
    except Exception as error:
        sent = None, error
    data = pickle.dumps(sent)
    with open(write, "wb", closefd=False) as stream:
        stream.write(data)
