"""LLVM makes one object file of equal assembly, whichever tests, workers and runs compile it.

The code of this package between assembly and object file counts, too, as it is in the process: a
fault that is seeded there is not hidden by an object file that was made without it.
"""

from __future__ import annotations

import hashlib
import inspect
import marshal
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import CodeType, ModuleType

import llvmlite

from tilewright.base.files import write_whole
from tilewright.targets.cpu import compile as cpu
from tilewright.targets.cpu import lone_lanes
from tilewright.targets.cpu.machine import CpuMachine
from tilewright.targets.llvm import backend

ObjectCode = Callable[[str, CpuMachine, str, int], bytes]
UNUSED = 7 * 86400  # seconds after which a file that no test asks for is deleted

# Set by tests/conftest.py, to a folder that is kept from run to run. None: there is no such folder.
folder: Path | None = None


def shared(make: ObjectCode, folder: Path) -> ObjectCode:
    """`make`, which depends on its arguments and LLVM only, with its results kept in a folder."""

    @wraps(make)
    def kept(text: str, machine: CpuMachine, where: str, level: int) -> bytes:
        by = f"{llvmlite.__version__} {machine.triple} {machine.feature_string} {level}"
        asked = hashlib.sha256(f"{by}\n{text}".encode())
        for step in (make, cpu.optimized, cpu.target_machine):
            asked.update(_code(step))
        for module in (backend, lone_lanes):
            asked.update(b"".join(_parts(module)))
        path = folder / asked.hexdigest()
        with suppress(OSError):
            code = path.read_bytes()
            os.utime(path)
            return code
        code = make(text, machine, where, level)
        with suppress(OSError):  # some tests fill the disk
            write_whole(path, lambda file: file.write(code))
        return code

    return kept


def _parts(module: ModuleType) -> Iterator[bytes]:
    """The code of a module's functions, and its other values as text."""
    for name, value in vars(module).items():
        if not name.startswith("__"):
            yield _code(value) if callable(value) else repr(value).encode()


def _code(function: Callable[..., object]) -> bytes:
    """The code that a function has now; nothing of a class."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return marshal.dumps(code, 2) if isinstance(code, CodeType) else b""


def delete_unused(folder: Path) -> None:
    """Delete the files that no test has asked for in the last days."""
    oldest = time.time() - UNUSED
    for file in os.scandir(folder):
        if file.stat().st_mtime < oldest:
            os.unlink(file)
