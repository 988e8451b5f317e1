"""A process that runs programs for a campaign: it may crash, hang, or exceed its memory."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from tilewright.base.dataclass import dataclass

Tell = Callable[[str], None]
Met = Counter[tuple[str, str]]

MEMORY: Final = 6 << 30  # bytes of address space of a process
START: Final = 300.0  # seconds for a process to come up
GRACE: Final = 5.0  # seconds for a process that has nothing to do to end


@dataclass(frozen=True, slots=True)
class FuzzFinding:
    """A failure. reason: how, on one line or more; test: the source of a test that fails."""

    reason: str
    test: str


@dataclass(frozen=True, slots=True)
class CaseGenerator:
    """A kind of random programs.

    run: runs the program of a seed and returns its fault. It may `tell` what it is about to try,
    which restarts its time limit. again: repeats the last attempt told, if the seed alone does not
    determine it. seconds: the time limit of a program. met: the counts of pairs in this process,
    which steer the generator to rare ones; it updates them.
    """

    name: str
    run: Callable[[int, Tell], FuzzFinding | None]
    again: Callable[[int, str], FuzzFinding | None] | None = None
    seconds: float = 600.0  # a busy machine may give a process a tenth of one
    met: Callable[[], Met] | None = None


@dataclass(frozen=True, slots=True)
class LostProgram:
    """A program that crashed its process or raised. told: its last message."""

    reason: str
    told: str


Result = FuzzFinding | LostProgram | None


class FuzzProcess:
    """One process, begun when it is needed and again after a program that ended it."""

    def __init__(self) -> None:
        self._process: Any = None
        self.generator: CaseGenerator | None = None
        self.seed = 0
        self._told = ""
        self._end = float("inf")
        self._knows: set[str] = set()  # generators whose counts the process has
        self.met: Met = Counter()  # in the last program

    @property
    def pipe(self) -> Connection:
        """Readable when there is something to `poll`."""
        pipe: Connection = self._pipe
        return pipe

    def start(
        self,
        generator: CaseGenerator,
        seed: int,
        told: str | None = None,
        met: Met | None = None,
    ) -> None:
        """Start a program. told: repeat the attempt that an earlier program told. met: the
        generator's pair counts so far, for a process that does not have them yet."""
        if self._process is None:
            self._pipe, other = multiprocessing.get_context("spawn").Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=_serve,
                args=(other,),
                daemon=False,
            )
            process.start()
            other.close()
            self._process = process
            self._knows = set()
        new = generator.name not in self._knows
        self._knows.add(generator.name)
        self.met = Counter()
        self.generator, self.seed, self._told = generator, seed, told or ""
        self._end = time.monotonic() + START
        self._pipe.send((generator, seed, told, met if new else None))

    @property
    def left(self) -> float:
        """Seconds until the program has taken too long."""
        return self._end - time.monotonic()

    def poll(self) -> tuple[bool, Result]:
        """Whether the program has ended, and how; a process that hangs is killed."""
        assert self.generator is not None
        try:
            while self._pipe.poll():
                kind, value = self._pipe.recv()
                if kind == "done":
                    self.generator = None
                    return True, value
                if kind == "met":
                    self.met = value
                if kind == "told":
                    self._told = value
                self._end = time.monotonic() + self.generator.seconds
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            return True, self._lost(f"it ended its process with status {code}")
        if self.left > 0:
            return False, None
        return True, self._lost(f"it took more than {self.generator.seconds:g} seconds")

    def _lost(self, reason: str) -> LostProgram:
        self.close()
        return LostProgram(reason, self._told)

    def close(self) -> None:
        """Kill the process."""
        process = self._process
        busy = self.generator is not None
        self._process = self.generator = None
        if process is None:
            return
        self._pipe.close()
        if not busy:
            process.join(GRACE)
        process.kill()
        process.join()


def alone(
    generator: CaseGenerator,
    seed: int,
    told: str | None = None,
) -> str:
    """The fault of a program run in its own process; empty if none."""
    worker = FuzzProcess()
    try:
        worker.start(generator, seed, told)
        while True:
            worker.pipe.poll(max(0.0, worker.left))
            ended, result = worker.poll()
            if ended:
                return "" if result is None else result.reason
    finally:
        worker.close()


def _serve(pipe: Connection) -> None:
    """Receive programs and send their faults until the pipe closes."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the campaign ends its processes itself
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    while True:
        try:
            generator, seed, told, known = pipe.recv()
        except EOFError:
            return
        pipe.send(("begun", seed))
        met: Met = Counter() if generator.met is None else generator.met()
        met.update(known or {})
        before = met.copy()
        found = _attempt(generator, seed, told, lambda s: pipe.send(("told", s)))
        pipe.send(("met", met - before))
        pipe.send(("done", found))


def _attempt(
    generator: CaseGenerator,
    seed: int,
    told: str | None,
    tell: Tell,
) -> Result:
    """An exception that a generator lets through is a failure, too."""
    last = told or ""

    def telling(said: str) -> None:
        nonlocal last
        last = said
        tell(said)

    try:
        if told and generator.again is not None:
            return generator.again(seed, told)
        return generator.run(seed, telling)
    except Exception:
        reason = traceback.format_exc(limit=-6)
        return LostProgram(reason, last)
