"""Which process owns a run, to find out whether it is still alive."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_STARTED: Final = 19  # the index, after the command, in /proc/PID/stat


def myself() -> str:
    """This process: the boot ID of the system, its PID, and its start time.

    PIDs are reused, so a PID alone does not identify a process.
    """
    return _process(os.getpid())


def alive(process: str) -> bool:
    """Whether the process that returned this from `myself` still runs on this machine."""
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
    """Its start time; empty if it has ended or is a zombie."""
    try:
        text = Path(f"/proc/{number}/stat").read_text()
    except FileNotFoundError:
        return "" if Path("/proc/self/stat").exists() else _signalled(number)
    except OSError:
        return ""
    words = text.rpartition(")")[2].split()
    return "" if words[0] in "ZX" else words[_STARTED]


def _signalled(number: int) -> str:
    """On systems without /proc: whether the process exists."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "?"
