"""The memory limit of a model: the caller's, or else the machine's memory."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from tilewright.base import flags

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit(limit: int | None = None) -> int:
    """Bytes: `limit`, else TILEWRIGHT_MEMORY_LIMIT, else the machine's or container's memory."""
    if limit is not None:
        return limit
    asked = flags.MEMORY_LIMIT.get()
    return asked if asked is not None else machine_memory()


@cache
def machine_memory() -> int:
    """Bytes of physical memory, or the container's limit where that is less; read once."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUPS:
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total
