"""Compiles a model while the program goes on: in a forked process, or in a thread.

A process leaves the interpreter lock, the compilation lock and the garbage collector to the
program. It has the model that was read, and gives the result back as an artifact in memory. A
program with other Python threads cannot be forked safely: there, a thread compiles, more slowly.

The first call is what a user waits for, so it has the processors: the work begins after it.
"""

from __future__ import annotations

import os
import pickle
import select
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from functools import partial
from typing import IO, BinaryIO, Final, NoReturn, Protocol, cast

from tilewright.base import events
from tilewright.base.errors import CompileError
from tilewright.base.roomy import roomy
from tilewright.driver import processes
from tilewright.driver.compile_lock import exclusive
from tilewright.runtime import bundle
from tilewright.runtime.model import CompiledModel

DELAY: Final = 0.5  # seconds until the work begins if nobody says so before

Build = Callable[[], CompiledModel]


class BackgroundCompilation(Protocol):
    """A compilation of its own. All but `begin` for one thread at a time."""

    def begin(self) -> None:
        """Begin now, not after the DELAY. May be said several times."""

    def ended(self, wait: bool) -> bool:
        """Whether it has ended; wait: return when it has."""

    def model(self) -> CompiledModel:
        """The result, after the end. Repeats what the compilation warned of.

        Raises what the compilation raised, and CompileError if its process was killed.
        """


def start(build: Build) -> BackgroundCompilation:
    """Do `build` soon. A process ends with this one, or when nobody holds what is returned."""
    with exclusive():
        if processes.can_fork():
            with suppress(OSError):  # no more processes permitted
                return _CompilingProcess(build)
        return _CompilingThread(build)


class _CompilingThread:
    """The end of the program waits for it, as a thread cannot be stopped."""

    def __init__(self, build: Build) -> None:
        self._told = threading.Event()
        self._made: Future[CompiledModel] = Future()
        thread = threading.Thread(
            target=self._work, args=(build,), name="tilewright-background"
        )
        try:
            thread.start()
        except RuntimeError:  # no thread can be started, as at the end of the program
            self.begin()
            self._work(build)

    @roomy
    def _work(self, build: Build) -> None:
        self._told.wait(DELAY)
        try:
            self._made.set_result(build())
        except BaseException as error:
            self._made.set_exception(error)

    def begin(self) -> None:
        self._told.set()

    def ended(self, wait: bool) -> bool:
        if wait:
            wait_for([self._made])
        return self._made.done()

    def model(self) -> CompiledModel:
        return self._made.result()


class _CompilingProcess:
    def __init__(self, build: Build) -> None:
        self._running: list[int] = []
        read, write = os.pipe()
        self._told = os.fdopen(read, "rb")
        self._tell = os.fdopen(write, "wb", 0)
        self._outcome, self._model = _memory(), _memory()
        files = self._told, self._tell, self._outcome, self._model
        self._end = weakref.finalize(self, _end, self._running, os.getpid(), files)
        self._begun = False
        try:
            processes.fork(self._running, partial(self._work, build))
        except BaseException:
            self._end()
            raise

    def _work(self, build: Build, parent: int) -> NoReturn:
        """The process's part. It ends if its parent is killed."""

        def check_parent(event: events.Event) -> None:
            if os.getppid() != parent:
                os._exit(1)

        try:
            events.silence()
            events.subscribe(check_parent)
            select.select([self._told], [], [], DELAY)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")  # the program's filters are for there
                error = _attempt(build, self._model)
            texts = [(str(w.message), w.category) for w in said]
            self._outcome.write(_pickled(error, texts))
            self._outcome.flush()
        finally:
            os._exit(0)

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            with suppress(OSError):  # it has ended
                self._tell.write(b".")

    def ended(self, wait: bool) -> bool:
        how = 0 if wait else os.WNOHANG
        if self._running and processes.wait(self._running[0], how):
            self._running.clear()
        return not self._running

    def model(self) -> CompiledModel:
        self._outcome.seek(0)
        try:
            error, said = pickle.load(self._outcome)
        except (EOFError, pickle.UnpicklingError) as unfinished:
            raise CompileError(
                "the process that compiled the model was killed",
                hint="compile without tiered=True to see why; it may need more memory",
            ) from unfinished
        for text, category in said:
            warnings.warn(text, category, stacklevel=5)
        if error is not None:
            raise error
        return bundle.read_from(self._model)


def _memory() -> BinaryIO:
    """A file without a name, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("tilewright"), "w+b")
    return cast(BinaryIO, tempfile.TemporaryFile())


def _end(running: list[int], owner: int, files: Iterable[IO[bytes]]) -> None:
    """End the process, unless this is a fork of the program that started it."""
    for file in files:
        file.close()
    if os.getpid() == owner:
        processes.end(running)


def _attempt(build: Build, model: BinaryIO) -> Exception | None:
    try:
        bundle.write_to(model, build(), whole=True)
        model.flush()
    except Exception as error:
        return error
    return None


def _pickled(error: Exception | None, said: list[tuple[str, type[Warning]]]) -> bytes:
    try:
        return pickle.dumps((error, said))
    except Exception:  # an error of another package
        shown = CompileError(f"{type(error).__name__}: {error}")
        return pickle.dumps((shown, []))
