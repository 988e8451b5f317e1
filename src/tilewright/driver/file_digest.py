"""Digests of file contents, cached by the state of the file.

The cache holds each digest together with the state of the file when it was read. As in `make`, Git
and ccache, an equal state later means equal contents, under these rules:

- a state has the boot, device, inode, size, and the times of the last change of contents (mtime)
  and of anything else (ctime, which no program can set back);
- a digest is cached only if both times were at least SETTLED seconds old when reading began, so
  that a later change alters them, however coarse the file system's clock is;
- and only if the state was the same after reading.

A file without a cached digest, or in another state, is read again.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.store import FileStore
from tilewright.runtime import digest

SETTLED: Final = 2.0
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a file without its contents. Times are in nanoseconds since the epoch."""

    boot: str
    device: int
    inode: int
    size: int
    changed: int
    touched: int

    @staticmethod
    def of(path: Path) -> FileState:
        """The state of the file now. Raises OSError."""
        s = path.stat()
        return FileState(
            _boot(), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
        )

    @property
    def key(self) -> str:
        """The key in the store of the digest of the file."""
        return f"contents-{self.device:x}-{self.inode:x}"

    def settled(self, at: int) -> bool:
        """Whether the last change was at least SETTLED seconds before `at` (ns since the epoch)."""
        return bool(self.boot) and max(self.changed, self.touched) < at - int(
            SETTLED * 1e9
        )


def of_file(path: Path, store: FileStore) -> str:
    """The digest of the file's contents, from `store` or by reading it. Raises OSError."""
    now = time.time_ns()
    state = FileState.of(path)
    found = _remembered(store, state)
    if found is not None:
        return found
    read = _read(path, state.size)
    if state.settled(now) and FileState.of(path) == state:
        store.put(state.key, json.dumps([astuple(state), read]).encode())
    return read


def is_remembered(path: Path, store: FileStore) -> bool:
    """Whether the file has a cached digest. Raises OSError."""
    return _remembered(store, FileState.of(path)) is not None


def _remembered(store: FileStore, state: FileState) -> str | None:
    entry = store.get(state.key)
    if entry is not None:
        with suppress(ValueError, TypeError, RecursionError):
            before, kept = json.loads(entry)
            if before == list(astuple(state)) and isinstance(kept, str):
                return kept
    return None


def _read(path: Path, size: int) -> str:
    with path.open("rb", buffering=0) as file:
        return digest.of_file(file.fileno(), 0, size)


@cache
def _boot() -> str:
    """The identifier of this boot; empty if unknown, in which case no digest is cached."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
