"""Building in other processes: one that crashes, hangs or runs out of memory fails alone.

Each build is a fork, which already has the compiler and the schedule in memory and dies with its
parent. Builds run on the processors given. If programs are timed on all of them, building and
timing alternate: see `Builder.build`.
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
from typing import Any, Final, NoReturn

from tilewright.base import events, signals
from tilewright.base.dataclass import dataclass
from tilewright.base.roomy import roomy
from tilewright.runtime.threads import available, choose_cpus
from tilewright.tune.measure.options import Limits

_DEATH_OF_PARENT: Final = 1  # PR_SET_PDEATHSIG of prctl(2)
_DONE, _FAILED = (
    b"+",
    b"-",
)  # the first byte of a build's output: its result, or its error
BUILDING: Final = Limits(60.0, 4 << 30)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result of a build: the data, or the reason of the failure. seconds: wall time."""

    data: bytes
    seconds: float
    failure: str = ""


@dataclass(slots=True)
class _Build:
    number: int
    pid: int
    result: int  # the file it writes to
    end: int  # readable once it has ended
    begun: float
    expired: bool = False


class ProgramBuilder:
    """Runs functions that build data, several at a time.

    cpus: processors reserved for building, while others are timed; builds run in the background.
    Without any, builds run on all processors, and none runs while the caller does something else.
    ahead: concurrent builds per processor.
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
        """The number of builds that are running, or finished but not yet delivered."""
        return len(self._running)

    def build(
        self, jobs: Iterable[tuple[int, Callable[[], bytes]]]
    ) -> Iterator[tuple[int, BuildResult]]:
        """Yield the number and the result of each job, in order of completion.

        If builds share processors with timing, none runs between two results: as many builds as
        there are processors finish before the first one is yielded. Precondition: the thread that
        consumes the results stays alive until the last one, because builds die with it.
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
        """Stop all builds."""
        while self._running:
            build = self._running.pop()
            self._end(build)
            os.close(build.result)

    def _start(self, number: int, job: Callable[[], bytes]) -> None:
        for stream in (sys.stdout, sys.stderr):
            # Flush, or the fork would write the buffer again. Without a terminal a stream may be
            # closed.
            with suppress(AttributeError, ValueError, OSError):
                stream.flush()
        result, parent, begun = (
            os.memfd_create("tilewright"),
            os.getpid(),
            time.monotonic(),
        )
        with signals.held(), warnings.catch_warnings():
            # Python warns about other threads at a fork. They do not compile, so no state is
            # inconsistent.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if not pid:
                self._work(parent, job, result)
        end = os.pidfd_open(pid)
        self._running.append(_Build(number, pid, result, end, begun))

    @roomy
    def _work(self, parent: int, job: Callable[[], bytes], result: int) -> NoReturn:
        """The child's part. It handles no signal, as in `driver.processes`."""
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

    def _finished(self, least: int) -> Iterator[tuple[int, BuildResult]]:
        """Wait until `least` builds have finished; yields all that have."""
        done: list[tuple[int, BuildResult]] = []
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

    def _made(self, build: _Build) -> BuildResult:
        status = self._end(build)
        seconds = time.monotonic() - build.begun
        with open(build.result, "rb") as stream:
            stream.seek(0)
            data = stream.read()
        if build.expired:
            return BuildResult(
                b"", seconds, f"not finished within {self.limits.seconds:g} s"
            )
        if data[:1] == _DONE:
            return BuildResult(data[1:], seconds)
        if data[:1] == _FAILED:
            return BuildResult(b"", seconds, data[1:].decode(errors="replace"))
        return BuildResult(b"", seconds, _ending(status))

    def _end(self, build: _Build) -> int:
        """Kill a process, if it still runs; returns its status."""
        status = 0
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(build.end, signal.SIGKILL)
        # If the program ignores SIGCHLD, the system reaps the child, but this still waits for its
        # end.
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
    """The bytes of this process's data segment."""
    with open("/proc/self/status", encoding="ascii") as stream:
        line: Any = next(s for s in stream if s.startswith("VmData:"))
    return int(line.split()[1]) * 1024
