"""Which process a run belongs to, so that one can tell whether it is still at it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_STARTED: Final = 19  # of the words behind the command's name in /proc/PID/stat


def myself() -> str:
    """This process: the start of the system, its number, and when it was started.

    Numbers are given again, so that a number alone is not a process.
    """
    return _process(os.getpid())


def alive(process: str) -> bool:
    """Whether the process that called `myself` still runs, on this machine."""
    number = process.split()[1:2]
    if not number or not number[0].isdigit():
        return False
    return _process(int(number[0])) == process


def _process(number: int) -> str:
    return f"{_boot()} {number} {_started(number)}"


@cache
def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return "-"


def _started(number: int) -> str:
    """When it was started; empty where it is gone, or waits only to be buried."""
    try:
        text = Path(f"/proc/{number}/stat").read_text()
    except FileNotFoundError:
        return "" if Path("/proc/self/stat").exists() else _signalled(number)
    except OSError:
        return ""
    words = text.rpartition(")")[2].split()
    return "" if words[0] in "ZX" else words[_STARTED]


def _signalled(number: int) -> str:
    """For systems without /proc: whether there is any such process."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "?"
