"""The limits on a model's cost, in one table, and the resource use of the current compilation.

Long work calls `check()` at every step. A step that cannot, such as one call of LLVM, is bounded by
the size of its input: nodes, folded bytes, generated text.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tilewright.base import flags
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError, LimitError, MemoryLimitError
from tilewright.base.flags import Flag
from tilewright.base.memory import machine_memory, memory_limit

_MEMORY_PERIOD = 0.05  # seconds between two looks at the memory of the process


@dataclass(frozen=True)
class Limit:
    """One row of the table in docs/errors.md, which also says what happens beyond it."""

    what: str
    flag: Flag[Any]


FILE: Final = Limit("bytes of a model file", flags.FILE_LIMIT)
NODES: Final = Limit("nodes, including inlined functions", flags.NODE_LIMIT)
DEPTH: Final = Limit("nesting depth of functions and subgraphs", flags.DEPTH_LIMIT)
FOLDED: Final = Limit("bytes of constants the compiler creates", flags.FOLD_LIMIT)
FOLD_WORK: Final = Limit("operations to fold one node", flags.FOLD_WORK)
CODE: Final = Limit("instructions in one kernel", flags.CODE_LIMIT)
SECONDS: Final = Limit("seconds of a compilation", flags.COMPILE_SECONDS)
GROWTH: Final = Limit("bytes a compilation adds to the process", flags.COMPILE_MEMORY)
RUN: Final = Limit("bytes a run needs", flags.MEMORY_LIMIT)

# What to do where the limit is the caller's.
MORE_MEMORY: Final = (
    "raise memory_limit (on the command line --memory-limit) if the machine "
    "has the memory"
)
TABLE: Final = (FILE, NODES, DEPTH, FOLDED, FOLD_WORK, CODE, SECONDS, GROWTH, RUN)


def file_bytes(limit: int | None = None) -> int:
    """Bytes that a model's file may have; limit: those that the model may need."""
    asked, most = flags.FILE_LIMIT.get(), memory_limit(limit)
    return most if asked is None else min(asked, most)


@dataclass
class _Compilation:
    """The time, memory and folded bytes that a compilation has used."""

    started: float
    seconds: int
    base: int
    growth: int
    foldable: int
    looked: float
    folded: int = 0

    @staticmethod
    def begin() -> _Compilation:
        now, growth = time.monotonic(), flags.COMPILE_MEMORY.get()
        most = machine_memory() if growth is None else growth
        return _Compilation(
            now,
            flags.COMPILE_SECONDS.get(),
            _resident(),
            most,
            min(flags.FOLD_LIMIT.get(), memory_limit()),
            now,
        )


class WorkEnded(BaseException):
    """Long work was ended on request; like KeyboardInterrupt, no handler of errors is meant."""


class _Own(threading.local):
    """What is under way in this thread: models may be read while another thread compiles."""

    compilation: _Compilation | None = None
    until: Callable[[], bool] | None = None


_own = _Own()


@contextmanager
def compilation() -> Iterator[None]:
    """The limits of one compilation hold inside; one within another is part of it.

    What Python itself raises where memory or its stack ends becomes one of our errors.
    """
    if _own.compilation is not None:
        yield
        return
    _own.compilation = _Compilation.begin()
    try:
        yield
    except MemoryError as error:
        raise MemoryLimitError(
            f"the compilation needs more memory than is available: {error}".rstrip(
                ": "
            ),
            hint=f"Set {flags.MEMORY_LIMIT.name} to be told before",
        ) from error
    except RecursionError as error:
        raise CompileError(
            "the model is nested too deeply",
            code="TW-DEPTH",
            hint="Split its longest expression",
        ) from error
    finally:
        _own.compilation = None


@contextmanager
def ended_by(until: Callable[[], bool] | None) -> Iterator[None]:
    """`check` raises WorkEnded inside, in this thread, as soon as `until` is true."""
    outside, _own.until = _own.until, until
    try:
        yield
    finally:
        _own.until = outside


def check() -> None:
    """Raise LimitError or MemoryLimitError where the compilation under way is over a limit.

    Raises WorkEnded where `ended_by` asks for it.
    """
    if _own.until is not None and _own.until():
        raise WorkEnded
    run = _own.compilation
    if run is None:
        return
    now = time.monotonic()
    if now - run.started > run.seconds:
        raise exceeded(
            SECONDS, f"the compilation takes over {run.seconds:,} seconds", "TW-TIME"
        )
    if now - run.looked < _MEMORY_PERIOD:
        return
    run.looked = now
    grown = _resident() - run.base
    if grown > run.growth:
        raise MemoryLimitError(
            f"the compilation made the process grow by {grown:,} bytes, over the limit of "
            f"{run.growth:,}",
            hint=f"Raise {flags.COMPILE_MEMORY.name} if the machine has the memory",
        )


def fold(nbytes: int) -> bool:
    """Whether that many more bytes of constants may be made; if so, they count as made."""
    run = _own.compilation or _Compilation.begin()
    if run.folded + nbytes > run.foldable:
        return False
    run.folded += nbytes
    return True


@contextmanager
def separate_constants() -> Iterator[None]:
    """Constants made inside are limited for themselves, and do not count outside.

    For one of several sizes: those of another size must not decide which operators are folded.
    """
    run = _own.compilation
    if run is None:
        yield
        return
    run.folded, outside = 0, run.folded
    try:
        yield
    finally:
        run.folded = outside


def table(nbytes: int, what: str, where: str) -> None:
    """Ask for a table without which there is no code.

    Raises MemoryLimitError before it is made, where it is over the limit.
    """
    if not fold(nbytes):
        raise MemoryLimitError(
            f"{what} would take {nbytes:,} bytes, over the limit of {flags.FOLD_LIMIT.get():,} "
            "for constants that the compiler makes",
            where=where,
            hint=f"Raise {flags.FOLD_LIMIT.name} if the machine has the memory",
        )


def exceeded(
    limit: Limit, message: str, code: str, hint: str | None = None
) -> LimitError:
    """The error for a limit that is passed, with its flag. hint: what else would help."""
    raised = f"raise {limit.flag.name}"
    return LimitError(
        message, code=code, hint=f"{hint}, or {raised}" if hint else raised
    )


def _resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
