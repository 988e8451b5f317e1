"""Running independent jobs of a compilation in forked processes as well as in this one.

A fork has the whole program in memory already, so that nothing is sent there and little back. It is
made where it is safe: no other Python thread may be at work, in LLVM for example, at that moment.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import starmap
from typing import IO, NoReturn

from tilewright.base import events, signals

Job = Callable[[], bytes]
_NUMBER = struct.Struct("<I")
_MOST = 1024  # jobs whose numbers are one page, which any pipe holds
_FEWEST = 4  # fewer jobs are done before another process has started


def workers(jobs: int, processors: int) -> int:
    """How many processes this many jobs are for, this one included."""
    alone = not hasattr(os, "fork") or threading.active_count() > 1
    return 1 if alone or not _FEWEST <= jobs <= _MOST else min(processors, jobs)


def share(jobs: Sequence[Job], count: int) -> list[bytes | None]:
    """The results of the jobs, done by `count` processes in order, each taking the next one.

    None for a job that raised an Exception: do it again here to see it.
    """
    queue, back = os.pipe()
    os.write(back, b"".join(map(_NUMBER.pack, range(len(jobs)))))
    os.close(back)
    running: list[int] = []
    found: list[bytes | None] = [None] * len(jobs)
    with ExitStack() as stack:
        stack.callback(os.close, queue)
        stack.callback(_end, running)
        written = [
            stack.enter_context(tempfile.TemporaryFile()) for _ in range(count - 1)
        ]
        for results in written:
            try:
                _fork(running, jobs, queue, results)
            except OSError:  # the system permits no more: this process does the rest
                break
        for n in _numbers(queue):
            found[n] = _done(jobs[n])
        for pid, results in zip(running, written):
            _wait(pid)
            for n, result, happened in _records(results):
                found[n] = result
                for event in happened:
                    events.forward(event)
    return found


def _fork(
    running: list[int], jobs: Sequence[Job], queue: int, results: IO[bytes]
) -> None:
    """Add a process to those running: it does jobs until the queue is empty.

    The child handles no signals: where Python turns one into an exception, as it does for Ctrl-C,
    that would run on in the caller's code, in both processes.
    """
    for stream in (sys.stdout, sys.stderr):
        # What it holds is written once. A program without a terminal may have closed it.
        with suppress(AttributeError, ValueError, OSError):
            stream.flush()
    parent = os.getpid()
    with signals.held(), warnings.catch_warnings():
        # Python warns of any other thread, but those of libraries do nothing while we compile.
        warnings.simplefilter("ignore", DeprecationWarning)
        # One call from C: no signal that another thread took in comes between the fork and the
        # list by which the child will be ended.
        running.extend(starmap(os.fork, [()]))
        if os.getpid() != parent:
            _work(parent, jobs, queue, results)


def _work(parent: int, jobs: Sequence[Job], queue: int, results: IO[bytes]) -> NoReturn:
    """The child's part, which writes what came of its jobs. It ends with its parent, if killed."""
    status = 1
    try:
        listening = events.listening()
        events.silence()
        for n in _numbers(queue):
            if os.getppid() != parent:
                break
            with events.record() as happened:
                result = _done(jobs[n])
            pickle.dump((n, result, happened if listening else []), results)
        results.flush()
        status = 0
    finally:
        os._exit(status)


def _numbers(queue: int) -> Iterator[int]:
    """What is left in the queue, each number to one process only."""
    while data := os.read(queue, _NUMBER.size):
        yield _NUMBER.unpack(data)[0]


def _done(job: Job) -> bytes | None:
    try:
        return job()
    except Exception:  # raised again where its place in the model is known
        return None


def _wait(pid: int) -> None:
    # A program that lets the system reap its children still waits for their end here.
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _end(running: Sequence[int]) -> None:
    for pid in running:
        with suppress(
            ProcessLookupError
        ):  # waited for: here, by the program, or by the system
            os.kill(pid, signal.SIGKILL)
    for pid in running:
        _wait(pid)


def _records(
    results: IO[bytes],
) -> Iterator[tuple[int, bytes | None, list[events.Event]]]:
    """What a process wrote; the last record may be cut off where it was killed."""
    results.seek(0)
    while True:
        try:
            yield pickle.load(results)
        except (EOFError, pickle.UnpicklingError):
            return
