"""LLVM makes one object file of equal modules, whichever tests and workers compile them.

All that is ours runs each time: the module is compared as it is after the passes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from tilewright.base.files import write_whole
from tilewright.targets.cpu.machine import CpuMachine

ObjectCode = Callable[[Any, CpuMachine, int], bytes]


def shared(make: ObjectCode, folder: Path) -> ObjectCode:
    """`make`, which depends on nothing but its arguments, with its results kept in a folder."""

    @wraps(make)
    def kept(module: Any, machine: CpuMachine, level: int) -> bytes:
        asked = f"{machine.triple} {machine.feature_string} {level}\n{module}"
        path = folder / hashlib.sha256(asked.encode()).hexdigest()
        with suppress(OSError):
            return path.read_bytes()
        code = make(module, machine, level)
        with suppress(OSError):  # some tests fill the disk
            write_whole(path, lambda file: file.write(code))
        return code

    return kept
