"""Digests of file contents, cached by the state of the file.

The cache holds each digest together with the state of the file when it was read. As in `make`, Git
and ccache, an equal state later means equal contents, under these rules:

- a state has the boot, device, inode, size, and the times of the last change of contents (mtime)
  and of anything else (ctime, which no program can set back);
- a digest is cached only if both times were at least SETTLED seconds old when reading began, so
  that a later change alters them, however coarse the file system's clock is;
- and only if the state was the same after reading.

A file without a cached digest, or in another state, is read again. Several files may have one
digest, which holds as long as all of their states.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
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
        return _is_settled(self.boot, max(self.changed, self.touched), at)


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


def of_files(paths: Sequence[str], store: FileStore, key: str) -> str:
    """The digest of what several files hold, one after another, from `store` or by reading them.

    key: in the store. Raises OSError.
    """
    now = time.time_ns()
    state, changed = _states(paths)
    entry = store.get(key)
    if entry is not None:
        before, _, kept = entry.decode(errors="replace").partition(" ")
        if before == state and kept:
            return kept
    read = read_all(paths)
    if _is_settled(_boot(), changed, now) and _states(paths)[0] == state:
        store.put(key, f"{state} {read}".encode())
    return read


def read_all(paths: Sequence[str]) -> str:
    """The digest of what several files hold, one after another. Raises OSError."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            digest.update(file.read())
    return digest.hexdigest()


def _states(paths: Sequence[str]) -> tuple[str, int]:
    """A digest of the names and states of files, and when the last of them changed: `FileState`.

    Faster than an object for each of a thousand files. Raises OSError.
    """
    last, states = 0, [_boot()]
    for path in paths:
        s = os.stat(path)
        last = max(last, s.st_mtime_ns, s.st_ctime_ns)
        what = s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
        states.append(f"{path} {what}")
    return hashlib.sha256("\n".join(states).encode()).hexdigest(), last


def _is_settled(boot: str, changed: int, at: int) -> bool:
    """Whether the boot is known, and the last change was at least SETTLED seconds before `at`."""
    return bool(boot) and changed < at - int(SETTLED * 1e9)


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
