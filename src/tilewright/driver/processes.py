"""Runs independent jobs of a compilation in this process and in forked ones.

A fork already has the whole program in memory, so nothing is sent to it, and little back. Forking
is safe only while no other Python thread is at work, for example in LLVM.
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
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import starmap
from typing import IO, NoReturn

from tilewright.base import events, signals

Job = Callable[[], bytes]
_NUMBER = struct.Struct("<I")
_MOST = 1024  # jobs whose numbers fill one page, which fits into any pipe
_FEWEST = 4  # fewer jobs are done before another process has started
_brief: list[threading.Thread] = []


def briefly(work: Callable[[], object]) -> None:
    """Run `work` in a thread, whose end `can_fork` waits for.

    It pays for some milliseconds outside of the interpreter, as in LLVM, whose result is kept. An
    Exception is dropped: it is raised again where the result is asked for.
    """

    def run() -> None:
        with suppress(Exception):
            work()

    thread = threading.Thread(target=run, name="tilewright-briefly")
    with suppress(RuntimeError):  # no more threads permitted
        thread.start()
        _brief.append(thread)


def can_fork() -> bool:
    """Whether forking is safe: no other Python thread is at work, once brief ones have ended."""
    while _brief:
        _brief.pop().join()
    return hasattr(os, "fork") and threading.active_count() == 1


def workers(jobs: int, processors: int) -> int:
    """The number of processes for so many jobs, including this one."""
    if not can_fork() or not _FEWEST <= jobs <= _MOST:
        return 1
    return min(processors, jobs)


def share(jobs: Sequence[Job], count: int) -> list[bytes | None]:
    """Run the jobs in `count` processes, each taking the next job, and return their results.

    None for a job that raised an Exception: run it again here to see the exception.
    """
    if count == 1:  # of any number of jobs, more than fit into the queue
        return [_done(job) for job in jobs]
    running: list[int] = []
    found: list[bytes | None] = [None] * len(jobs)
    with ExitStack() as stack:
        queue = stack.enter_context(_queue(len(jobs)))
        stack.callback(end, running)
        written = [
            stack.enter_context(tempfile.TemporaryFile()) for _ in range(count - 1)
        ]
        for results in written:
            try:
                fork(running, partial(_work, jobs, queue, results))
            except OSError:  # no more processes permitted: this one does the rest
                break
        for n in _numbers(queue):
            found[n] = _done(jobs[n])
        for pid, results in zip(running, written):
            wait(pid)
            for n, result in _collected(results):
                found[n] = result
    return found


@contextmanager
def _queue(jobs: int) -> Iterator[int]:
    """The end of a pipe that has the numbers of the jobs."""
    queue, back = os.pipe()
    try:
        os.write(back, b"".join(map(_NUMBER.pack, range(jobs))))
        os.close(back)
        yield queue
    finally:
        os.close(queue)


@contextmanager
def meanwhile(job: Job) -> Iterator[Callable[[], bytes | None]]:
    """Run a job in a forked process during the `with` block; the function waits for its result.

    That is None if there is no process, or the job raised an Exception: run it here then.
    """
    with ExitStack() as stack:
        queue = stack.enter_context(_queue(1))
        written = stack.enter_context(tempfile.TemporaryFile())
        running: list[int] = []
        stack.callback(end, running)
        with suppress(OSError):  # no more processes permitted
            fork(running, partial(_work, [job], queue, written))

        def result() -> bytes | None:
            for pid in running:
                wait(pid)
            return next((found for _, found in _collected(written)), None)

        yield result


def fork(running: list[int], work: Callable[[int], NoReturn]) -> None:
    """Start a process that does `work(its parent)`; add it to `running`.

    Raises OSError if no process can be started.

    The child handles no signals. Python turns some, such as Ctrl-C, into exceptions, which would
    continue in the caller's code, in both processes.
    """
    for stream in (sys.stdout, sys.stderr):
        # Flush, or both processes would write its buffer. Without a terminal, it may be closed.
        with suppress(AttributeError, ValueError, OSError):
            stream.flush()
    parent = os.getpid()
    with signals.held(), warnings.catch_warnings():
        # Python warns of any other thread, but threads of libraries are idle during a compilation.
        warnings.simplefilter("ignore", DeprecationWarning)
        # A single call from C: no signal that another thread received can be handled between the
        # fork and the entry in the list by which the child will be killed.
        try:
            running.extend(starmap(os.fork, [()]))
        except RuntimeError as error:  # at the end of the program, since Python 3.12
            raise OSError(str(error)) from error
        if os.getpid() != parent:
            work(parent)


def _work(jobs: Sequence[Job], queue: int, results: IO[bytes], parent: int) -> NoReturn:
    """The child's part: writes the results of its jobs. It ends if its parent is killed."""
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
    """The numbers left in the queue; each goes to one process only."""
    while data := os.read(queue, _NUMBER.size):
        yield _NUMBER.unpack(data)[0]


def _done(job: Job) -> bytes | None:
    try:
        return job()
    except Exception:  # raised again where its place in the model is known
        return None


def wait(pid: int, how: int = 0) -> bool:
    """Whether a process has ended; how: 0 to wait for the end, os.WNOHANG not to."""
    # In a program that lets the system reap its children, waitpid waits for them, then raises.
    with suppress(ChildProcessError):
        return os.waitpid(pid, how)[0] == pid
    return True


def end(running: Sequence[int]) -> None:
    """Kill processes, and wait for their end."""
    for pid in running:
        with suppress(ProcessLookupError):  # already reaped, here or elsewhere
            os.kill(pid, signal.SIGKILL)
    for pid in running:
        wait(pid)


def _collected(results: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """The results that a process wrote; what happened there is reported here."""
    for n, result, happened in _records(results):
        for event in happened:
            events.forward(event)
        yield n, result


def _records(
    results: IO[bytes],
) -> Iterator[tuple[int, bytes | None, list[events.Event]]]:
    """The records that a process wrote; the last one may be cut off if it was killed."""
    results.seek(0)
    while True:
        try:
            yield pickle.load(results)
        except (EOFError, pickle.UnpicklingError):
            return
