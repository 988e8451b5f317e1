"""Every environment variable that changes behaviour, declared once and read when asked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from tilewright.base.errors import FlagError

T = TypeVar("T")


@dataclass(frozen=True)
class Flag(Generic[T]):
    """One environment variable. ``get()`` reads it now; nothing is read at import.

    ``expected`` completes "expected ..." in the error; ``doc`` says what it changes.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    expected: str
    doc: str

    def get(self) -> T:
        """The value, or the default when unset or empty. Raises FlagError for a bad value."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise FlagError(
                f"{self.name}={text!r} cannot be understood: expected {self.expected}",
                hint=f"Set it so, or unset it (default: {self.shown(self.default)})",
            ) from None

    @property
    def is_set(self) -> bool:
        """The environment gives it a value, which may be a bad one."""
        return bool(os.environ.get(self.name, "").strip())

    @staticmethod
    def shown(value: object) -> str:
        """A value as people would write it: on and off, none for None."""
        if isinstance(value, bool):
            return "on" if value else "off"
        return "none" if value is None else str(value)


_SWITCH: Final = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?b)?", re.IGNORECASE)
_SIZE_EXPECTED: Final = "a number of bytes, such as 1073741824, 512M or 2GiB"


def parse_switch(text: str) -> bool:
    """``1 on true yes`` or ``0 off false no``, in any case. Raises ValueError."""
    try:
        return _SWITCH[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def parse_size(text: str) -> int:
    """Bytes from ``123``, ``512M``, ``2GiB``; the units are powers of 1024. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    scale = 1024 ** " kmgtp".index(found[2].lower() or " ")
    # An integer stays exact at any size; only a decimal fraction goes through a float.
    return int(float(found[1]) * scale) if "." in found[1] else int(found[1]) * scale


def parse_count(text: str) -> int:
    """An integer of at least 1. Raises ValueError."""
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def _parse_omp_threads(text: str) -> int:
    return parse_count(text.split(",")[0])


def _parse_path(text: str) -> Path:
    return Path(text).expanduser()


DEBUG: Final = Flag(
    "TILEWRIGHT_DEBUG",
    parse_switch,
    False,
    "on or off",
    "Show tracebacks on the command line and verify every IR between passes.",
)
NUM_THREADS: Final = Flag[int | None](
    "TILEWRIGHT_NUM_THREADS",
    parse_count,
    None,
    "an integer of at least 1",
    "Threads that a model runs on, if compile() is not told.",
)
OMP_NUM_THREADS: Final = Flag[int | None](
    "OMP_NUM_THREADS",
    _parse_omp_threads,
    None,
    "an integer of at least 1, or a list of them",
    "Threads that a model runs on, if TILEWRIGHT_NUM_THREADS is unset; the first of the list.",
)
CACHE: Final = Flag(
    "TILEWRIGHT_CACHE",
    parse_switch,
    True,
    "on or off",
    "Keep compiled kernels on disk and use them again.",
)
CACHE_DIR: Final = Flag[Path | None](
    "TILEWRIGHT_CACHE_DIR",
    _parse_path,
    None,
    "a path",
    "Folder of the cache; by default the user's cache folder.",
)
CACHE_SIZE: Final = Flag(
    "TILEWRIGHT_CACHE_SIZE",
    parse_size,
    2 * 1024**3,
    _SIZE_EXPECTED,
    "Bytes that the cache may hold; the least recently used entries go first.",
)
CHECK: Final = Flag(
    "TILEWRIGHT_CHECK",
    parse_switch,
    False,
    "on or off",
    "Run every kernel alone, in guarded memory, when it is compiled, and refuse a wrong one.",
)
MCPU: Final = Flag(
    "TILEWRIGHT_MCPU",
    str,
    "native",
    "the name of a processor",
    "Processor to compile for where native is asked for: x86-64-v3 is AVX2 without AVX-512.",
)
MACHINE: Final = Flag[Path | None](
    "TILEWRIGHT_MACHINE",
    _parse_path,
    None,
    "a path",
    "File that describes the processor: caches and costs, as benchmarks.calibrate writes it.",
)
STRICT: Final = Flag(
    "TILEWRIGHT_STRICT",
    parse_switch,
    False,
    "on or off",
    "Refuse what is slow: an operator without native code, an array that each call would copy.",
)
MEMORY_LIMIT: Final = Flag[int | None](
    "TILEWRIGHT_MEMORY_LIMIT",
    parse_size,
    None,
    _SIZE_EXPECTED,
    "Bytes that a model may need; by default what the machine has.",
)
NODE_LIMIT: Final = Flag(
    "TILEWRIGHT_NODE_LIMIT",
    parse_count,
    100_000,
    "an integer of at least 1",
    "Nodes that a model may have, those of the functions it calls included.",
)
FILE_LIMIT: Final = Flag[int | None](
    "TILEWRIGHT_FILE_LIMIT",
    parse_size,
    None,
    _SIZE_EXPECTED,
    "Bytes that a model's file may have; by default as many as the model may need.",
)
DEPTH_LIMIT: Final = Flag(
    "TILEWRIGHT_DEPTH_LIMIT",
    parse_count,
    64,
    "an integer of at least 1",
    "Functions and subgraphs that may lie within one another.",
)
FOLD_LIMIT: Final = Flag(
    "TILEWRIGHT_FOLD_LIMIT",
    parse_size,
    4 << 30,
    _SIZE_EXPECTED,
    "Bytes of constants and tables that a compilation may make, besides those of the file.",
)
FOLD_WORK: Final = Flag(
    "TILEWRIGHT_FOLD_WORK",
    parse_size,
    1 << 31,
    "a number of operations, such as 1000000 or 2G",
    "Operations that folding one node may take; what needs more is left to run time.",
)
CODE_LIMIT: Final = Flag(
    "TILEWRIGHT_CODE_LIMIT",
    parse_count,
    1 << 19,
    "an integer of at least 1",
    "Instructions of one kernel, unrolled loops written out.",
)
COMPILE_SECONDS: Final = Flag(
    "TILEWRIGHT_COMPILE_SECONDS",
    parse_count,
    3600,
    "a number of seconds of at least 1",
    "Seconds that a compilation may take.",
)
COMPILE_MEMORY: Final = Flag[int | None](
    "TILEWRIGHT_COMPILE_MEMORY",
    parse_size,
    None,
    _SIZE_EXPECTED,
    "Bytes by which a compilation may make the process grow; by default what the machine has.",
)
DUMP: Final = Flag[Path | None](
    "TILEWRIGHT_DUMP",
    _parse_path,
    None,
    "a path",
    "Folder for the text of every stage of a compilation, and of the plan after each pass.",
)
PERF_MAP: Final = Flag(
    "TILEWRIGHT_PERF_MAP",
    parse_switch,
    False,
    "on or off",
    "Write the addresses of kernels to /tmp/perf-<pid>.map, so that perf shows names.",
)
GDB: Final = Flag(
    "TILEWRIGHT_GDB",
    parse_switch,
    False,
    "on or off",
    "Register kernels with gdb, so that it shows their names and takes breakpoints on them.",
)

TABLE: Final[tuple[Flag[object], ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Flag)
)
