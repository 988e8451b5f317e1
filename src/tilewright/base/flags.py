"""Every environment variable that changes behavior, declared once and read when used."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from tilewright.base import modes
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import FlagError
from tilewright.base.text import did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class Flag(Generic[T]):
    """One environment variable. ``get()`` reads it now; nothing is read at import.

    ``expected`` completes "expected ..." in the error; ``doc`` describes its effect; ``replaces``
    is a former name, which is rejected.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    expected: str
    doc: str
    replaces: str = ""

    def get(self) -> T:
        """The value, or the default when unset or empty.

        Raises FlagError for a bad value, and where the former name is set.
        """
        if self.replaces and os.environ.get(self.replaces, "").strip():
            raise FlagError(
                f"{self.replaces} was replaced by {self.name}",
                hint=f"Set {self.name} to {self.expected}, and unset {self.replaces}",
            )
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise FlagError(
                f"{self.name}={text!r} is invalid: expected {self.expected}",
                hint=f"Correct it, or unset it (default: {self.shown(self.default)})",
            ) from None

    @property
    def is_set(self) -> bool:
        """Whether the environment sets it, to a valid value or not."""
        return bool(os.environ.get(self.name, "").strip())

    @staticmethod
    def shown(value: object) -> str:
        """A value as a user writes it: on or off, and none for None."""
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
    # Integers stay exact at any size; only decimal fractions are converted to float.
    return int(float(found[1]) * scale) if "." in found[1] else int(found[1]) * scale


def parse_count(text: str) -> int:
    """An integer of at least 1. Raises ValueError."""
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def _parse_omp_threads(text: str) -> int:
    return parse_count(text.split(",")[0])


def _parse_fallback(text: str) -> str:
    return modes.FALLBACK[modes.FALLBACK.index(text.lower())]


def _parse_path(text: str) -> Path:
    return Path(text).expanduser()


def _parse_path_or_off(text: str) -> Path | bool:
    off = text.lower() in _SWITCH and not _SWITCH[text.lower()]
    return False if off else _parse_path(text)


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
    "Threads a model runs on, unless compile() or load() is given a number.",
)
OMP_NUM_THREADS: Final = Flag[int | None](
    "OMP_NUM_THREADS",
    _parse_omp_threads,
    None,
    "an integer of at least 1, or a list of them",
    "Threads a model runs on if TILEWRIGHT_NUM_THREADS is unset; the first entry of a list.",
)
CACHE: Final = Flag(
    "TILEWRIGHT_CACHE",
    parse_switch,
    True,
    "on or off",
    "Keep compiled kernels on disk and reuse them.",
)
CACHE_DIR: Final = Flag[Path | None](
    "TILEWRIGHT_CACHE_DIR",
    _parse_path,
    None,
    "a path",
    "Folder of the cache; defaults to the user's cache folder.",
)
CACHE_SIZE: Final = Flag(
    "TILEWRIGHT_CACHE_SIZE",
    parse_size,
    2 * 1024**3,
    _SIZE_EXPECTED,
    "Size limit of the cache; the least recently used entries are evicted first.",
)
RECORDS: Final = Flag[Path | bool | None](
    "TILEWRIGHT_RECORDS",
    _parse_path_or_off,
    None,
    "a path, or off",
    "File of the tuning records that compile uses; defaults to one in the user's data folder.",
)
CHECK: Final = Flag(
    "TILEWRIGHT_CHECK",
    parse_switch,
    False,
    "on or off",
    "Test every kernel in guarded memory before a shape's first call; reject a wrong one.",
)
MCPU: Final = Flag(
    "TILEWRIGHT_MCPU",
    str,
    "native",
    "the name of a processor",
    "Processor that native stands for; x86-64-v3, for example, is AVX2 without AVX-512.",
)
MACHINE: Final = Flag[Path | None](
    "TILEWRIGHT_MACHINE",
    _parse_path,
    None,
    "a path",
    "File that describes the processor: its caches and costs, as benchmarks.calibrate writes it.",
)
OPENCL_DEVICE: Final = Flag[str | None](
    "TILEWRIGHT_OPENCL_DEVICE",
    str,
    None,
    "a part of the name of a platform and device",
    "OpenCL device that models run on; defaults to a GPU, or a processor where there is none.",
)
FALLBACK: Final = Flag(
    "TILEWRIGHT_FALLBACK",
    _parse_fallback,
    "warn",
    "warn or error",
    "With error, reject operators without native code and arrays that each call would copy.",
    replaces="TILEWRIGHT_STRICT",
)
MEMORY_LIMIT: Final = Flag[int | None](
    "TILEWRIGHT_MEMORY_LIMIT",
    parse_size,
    None,
    _SIZE_EXPECTED,
    "Bytes of memory a model may need; defaults to the machine's memory.",
)
NODE_LIMIT: Final = Flag(
    "TILEWRIGHT_NODE_LIMIT",
    parse_count,
    100_000,
    "an integer of at least 1",
    "Nodes a model may have, including those of the functions it calls.",
)
FILE_LIMIT: Final = Flag[int | None](
    "TILEWRIGHT_FILE_LIMIT",
    parse_size,
    None,
    _SIZE_EXPECTED,
    "Size of a model file in bytes; defaults to the memory limit.",
)
DEPTH_LIMIT: Final = Flag(
    "TILEWRIGHT_DEPTH_LIMIT",
    parse_count,
    64,
    "an integer of at least 1",
    "Nesting depth of functions and subgraphs.",
)
FOLD_LIMIT: Final = Flag(
    "TILEWRIGHT_FOLD_LIMIT",
    parse_size,
    4 << 30,
    _SIZE_EXPECTED,
    "Bytes of constants and tables a compilation may create beyond those in the file.",
)
FOLD_WORK: Final = Flag(
    "TILEWRIGHT_FOLD_WORK",
    parse_size,
    1 << 31,
    "a number of operations, such as 1000000 or 2G",
    "Operations that folding one node may take; larger nodes are computed at run time.",
)
CODE_LIMIT: Final = Flag(
    "TILEWRIGHT_CODE_LIMIT",
    parse_count,
    1 << 19,
    "an integer of at least 1",
    "Instructions in one kernel, with unrolled loops counted in full.",
)
COMPILE_SECONDS: Final = Flag(
    "TILEWRIGHT_COMPILE_SECONDS",
    parse_count,
    3600,
    "a number of seconds of at least 1",
    "Seconds a compilation may take.",
)
COMPILE_MEMORY: Final = Flag[int | None](
    "TILEWRIGHT_COMPILE_MEMORY",
    parse_size,
    None,
    _SIZE_EXPECTED,
    "Bytes a compilation may add to the process; defaults to the machine's memory.",
)
DUMP: Final = Flag[Path | None](
    "TILEWRIGHT_DUMP",
    _parse_path,
    None,
    "a path",
    "Folder to which every stage of a compilation, and the plan after each pass, is written.",
)
PERF_MAP: Final = Flag(
    "TILEWRIGHT_PERF_MAP",
    parse_switch,
    False,
    "on or off",
    "Write kernel addresses to /tmp/perf-<pid>.map so that perf shows their names.",
)
GDB: Final = Flag(
    "TILEWRIGHT_GDB",
    parse_switch,
    False,
    "on or off",
    "Register kernels with gdb so that it shows their names and can set breakpoints.",
)

TABLE: Final[tuple[Flag[object], ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Flag)
)


def strangers() -> list[str]:
    """One line for each variable of the environment that is named as a flag and is none.

    Variables that our processes pass to one another begin with an underscore.
    """
    known = {n for f in TABLE for n in (f.name, f.replaces)}
    return [
        f"{name} is no setting. {did_you_mean(name, [f.name for f in TABLE])}"
        for name in sorted(os.environ)
        if name.startswith("TILEWRIGHT_") and name not in known
    ]
