"""LLVM makes one object file of equal modules, whichever tests, workers and runs compile them.

All code of this package runs each time: modules are compared as they are after the passes.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import llvmlite

from tilewright.base.files import write_whole
from tilewright.targets.cpu.machine import CpuMachine

ObjectCode = Callable[[Any, CpuMachine, int], bytes]
UNUSED = 7 * 86400  # seconds after which a file that no test asks for is deleted

# Set by tests/conftest.py, to a folder that is kept from run to run. None: there is no such folder.
folder: Path | None = None


def shared(make: ObjectCode, folder: Path) -> ObjectCode:
    """`make`, which depends on its arguments and LLVM only, with its results kept in a folder."""

    @wraps(make)
    def kept(module: Any, machine: CpuMachine, level: int) -> bytes:
        by = f"{llvmlite.__version__} {machine.triple} {machine.feature_string} {level}"
        asked = f"{by}\n{module}"
        path = folder / hashlib.sha256(asked.encode()).hexdigest()
        with suppress(OSError):
            code = path.read_bytes()
            os.utime(path)
            return code
        code = make(module, machine, level)
        with suppress(OSError):  # some tests fill the disk
            write_whole(path, lambda file: file.write(code))
        return code

    return kept


def delete_unused(folder: Path) -> None:
    """Delete the files that no test has asked for in the last days."""
    oldest = time.time() - UNUSED
    for file in os.scandir(folder):
        if file.stat().st_mtime < oldest:
            os.unlink(file)
