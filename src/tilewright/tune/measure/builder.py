"""Making programs in other processes: a build that crashes, hangs or takes all memory is one trial.

Each build is a fork, which has the compiler and the schedule in memory already and ends with the
process that it is of. Builds run on the processors that they are given. Where programs are timed on
all of them, builds and timing take turns: see `Builder.build`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from tilewright.base import events, signals
from tilewright.runtime.threads import available, choose_cpus
from tilewright.tune.measure.options import Limits

_DEATH_OF_PARENT: Final = 1  # PR_SET_PDEATHSIG of prctl(2)
_DONE, _FAILED = (
    b"+",
    b"-",
)  # the first byte of what a build leaves: its result, or why not
BUILDING: Final = Limits(60.0, 4 << 30)


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a build: the data, or else why there are none. seconds: of the wall clock."""

    data: bytes
    seconds: float
    failure: str = ""


@dataclass(slots=True)
class _Build:
    number: int
    pid: int
    result: int  # the file that it writes
    end: int  # readable when it has ended
    begun: float
    expired: bool = False


class Builder:
    """Makes data by functions, several at a time.

    cpus: processors for it alone, beside which others are timed: builds go on meanwhile. Without
    any, builds run on all processors, and none goes on while the caller does something else.
    ahead: builds at a time, for each processor.
    """

    def __init__(
        self, cpus: Sequence[int] = (), limits: Limits = BUILDING, ahead: int = 1
    ) -> None:
        self.alone = bool(cpus)
        self.cpus = list(cpus) or choose_cpus(available())
        self.limits = limits
        self.most = ahead * len(self.cpus)
        self._running: list[_Build] = []

    @property
    def running(self) -> int:
        """How many builds go on, or are finished and were not given yet."""
        return len(self._running)

    def build(
        self, jobs: Iterable[tuple[int, Callable[[], bytes]]]
    ) -> Iterator[tuple[int, Made]]:
        """The number of each job with what its function gives, as they are finished.

        Where it shares processors with those who are timed, nothing runs between one result and the
        next: as many builds as there are processors are finished before the first is given.
        requires: the thread that asks for results lives until the last: builds end with it.
        """
        waiting = iter(jobs)
        more = True
        try:
            while True:
                while more and len(self._running) < self.most:
                    job = next(waiting, None)
                    more = job is not None
                    if job is not None:
                        self._start(*job)
                if not self._running:
                    return
                least = 1 if self.alone else len(self._running)
                yield from self._finished(least)
        finally:
            self.close()

    def close(self) -> None:
        """End all builds."""
        while self._running:
            build = self._running.pop()
            self._end(build)
            os.close(build.result)

    def _start(self, number: int, job: Callable[[], bytes]) -> None:
        for stream in (sys.stdout, sys.stderr):
            # What it holds is written once. A program without a terminal may have closed it.
            with suppress(AttributeError, ValueError, OSError):
                stream.flush()
        result, parent, begun = (
            os.memfd_create("tilewright"),
            os.getpid(),
            time.monotonic(),
        )
        with signals.held(), warnings.catch_warnings():
            # Python warns of other threads: they do not compile, so that nothing is half done.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if not pid:
                self._work(parent, job, result)
        end = os.pidfd_open(pid)
        self._running.append(_Build(number, pid, result, end, begun))

    def _work(self, parent: int, job: Callable[[], bytes], result: int) -> NoReturn:
        """The fork's part. It handles no signal, as in `driver.processes`."""
        try:
            ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            events.silence()
            os.sched_setaffinity(0, self.cpus)
            soft = _data_size() + self.limits.memory
            resource.setrlimit(resource.RLIMIT_DATA, (soft, soft))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with open(result, "wb", closefd=False) as stream:
                stream.write(_done(job))
        finally:
            os._exit(0)

    def _finished(self, least: int) -> Iterator[tuple[int, Made]]:
        """Those that are finished, when `least` of them are."""
        done: list[tuple[int, Made]] = []
        while len(done) < least:
            late = min(b.begun for b in self._running) + self.limits.seconds
            left = max(0.0, late - time.monotonic())
            ends = [b.end for b in self._running]
            ready, _, _ = select.select(ends, [], [], left)
            for build in list(self._running):
                passed = time.monotonic() - build.begun
                build.expired = build.end not in ready and passed >= self.limits.seconds
                if build.end in ready or build.expired:
                    self._running.remove(build)
                    done.append((build.number, self._made(build)))
        yield from done

    def _made(self, build: _Build) -> Made:
        status = self._end(build)
        seconds = time.monotonic() - build.begun
        with open(build.result, "rb") as stream:
            stream.seek(0)
            data = stream.read()
        if build.expired:
            return Made(b"", seconds, f"no end within {self.limits.seconds:g} s")
        if data[:1] == _DONE:
            return Made(data[1:], seconds)
        if data[:1] == _FAILED:
            return Made(b"", seconds, data[1:].decode(errors="replace"))
        return Made(b"", seconds, _ending(status))

    def _end(self, build: _Build) -> int:
        """End a process, if it is not yet; its status."""
        status = 0
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(build.end, signal.SIGKILL)
        # A program that lets the system reap its children still waits for their end here.
        with suppress(ChildProcessError):
            _, status = os.waitpid(build.pid, 0)
        os.close(build.end)
        return status


def _done(job: Callable[[], bytes]) -> bytes:
    try:
        return _DONE + job()
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        return _FAILED + " ".join(reason.split())[:500].encode()


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"the compiler's process ended with {name}"
    return f"the compiler's process ended with code {status >> 8}"


def _data_size() -> int:
    """Bytes of this process's data."""
    with open("/proc/self/status", encoding="ascii") as stream:
        line: Any = next(s for s in stream if s.startswith("VmData:"))
    return int(line.split()[1]) * 1024
