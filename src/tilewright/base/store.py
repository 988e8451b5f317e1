"""A content-addressed store on disk: checked on reading, atomic on writing, capped in size.

An entry is one file, ``root/ab/abcdef...``: a magic line, a checksum over key and data, the data.
Writers rename a finished file into place, so a reader or a crash never sees half an entry, and any
number of processes may share a store. The time of last use is the file's time of last access: that
of its last change stays what it was, so that it tells whether somebody wrote to the file.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from tilewright.base import events, flags
from tilewright.base.errors import TilewrightWarning
from tilewright.base.files import UNFINISHED, write_whole
from tilewright.base.text import human_bytes

_MAGIC: Final = b"tilewright store 1\n"
_DIGEST_SIZE: Final = 32
_HEADER: Final = len(_MAGIC) + _DIGEST_SIZE
_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{2,199}")
_ABANDONED_SECONDS: Final = 3600.0
# Evicting to below the cap leaves room, so that not every later put evicts again.
_EVICT_TO: Final = 0.9
# What this process may write before it looks again at what the others wrote.
_RESCAN_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: key, bytes on disk, and when it was last used, in seconds of the epoch."""

    key: str
    size: int
    used: float
    path: Path


@dataclass(frozen=True, slots=True)
class Stats:
    """What the store holds, and what this process did with it."""

    root: Path
    entries: int
    size: int
    max_bytes: int
    writable: bool
    hits: int
    misses: int
    corrupted: int
    evicted: int


class Store:
    """Bytes by key, on disk below ``root``, at most about ``max_bytes`` of them.

    Trouble with the disk never fails the caller: an unwritable folder is one TilewrightWarning and
    nothing is stored from then on; a damaged entry is deleted, reported once, and counts as absent.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self._writable = True
        self._warned: set[str] = set()
        self._hits = self._misses = self._corrupted = self._evicted = 0
        self._size: int | None = None
        self._written_since_scan = 0

    def get(self, key: str) -> bytes | None:
        """The data put under ``key``, or None. Counts as a use. Raises ValueError for a bad key."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                header, data = file.read(_HEADER), file.read()
        except OSError as error:
            # No such folder, or a file where it should be: empty, until put() says what is wrong.
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                self._warn("read", f"{self.root}: what is kept there cannot be read: {error}")
            self._misses += 1
            return None
        if header != _header(key, data):
            self._discard(key, path)
            return None
        self._hits += 1
        # It fails in a store that is read-only, or if evicted this moment: the data is good anyway.
        with suppress(OSError):
            _use(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``, replacing what was there. Raises ValueError for a bad key.

        Data that alone exceeds the cap is not kept.
        """
        path = self._path(key)
        size = _HEADER + len(data)
        if not self._writable or size > self.max_bytes:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            parts = (_header(key, data), data)
            write_whole(path, lambda file: file.writelines(parts), private=True)
            self._account(size)
        except OSError as error:
            self._unwritable(error)

    def find(self, key: str) -> Path | None:
        """The file that `adopt` made under ``key``, or None. Counts as a use."""
        path = self._path(key)
        try:
            _use(path)
        except OSError:
            if not path.is_file():
                self._misses += 1
                return None
        self._hits += 1
        return path

    def adopt(self, key: str, size: int, write: Callable[[Path], object]) -> Path | None:
        """Keep under ``key`` the file of about ``size`` bytes that ``write(path)`` makes at once.

        For data that is read in place and carries its own checksum: whoever finds it damaged calls
        `discard`. A file larger than half the cap is not made. The file, or None.
        """
        path = self._path(key)
        if not self._writable or size > self.max_bytes // 2:
            return None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
            if not path.exists():  # another process evicted it at this very moment
                return None
            self._account(size)
        except OSError as error:
            self._unwritable(error)
            return None
        return path

    def discard(self, key: str) -> None:
        """Delete a damaged entry, and say so once; one that was evicted meanwhile is absent."""
        self._hits -= 1
        path = self._path(key)
        if path.exists():
            self._discard(key, path)
        else:
            self._misses += 1

    def entries(self) -> list[Entry]:
        """All entries, the most recently used first."""
        return sorted(self._scan(), key=lambda entry: entry.used, reverse=True)

    def stats(self) -> Stats:
        """Counts and sizes; reads the folder."""
        sizes = [entry.size for entry in self._scan()]
        return Stats(
            root=self.root,
            entries=len(sizes),
            size=sum(sizes),
            max_bytes=self.max_bytes,
            writable=self._writable and _can_write(self.root),
            hits=self._hits,
            misses=self._misses,
            corrupted=self._corrupted,
            evicted=self._evicted,
        )

    def clear(self) -> int:
        """Delete all entries; how many there were. Raises OSError if one cannot be deleted."""
        count = 0
        for entry in self._scan():
            entry.path.unlink(missing_ok=True)
            count += 1
        _remove_abandoned(self.root)
        self._size = None
        return count

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key: expected 3 to 200 of letters, digits and _.-")
        return self.root / key[:2] / key

    def _scan(self) -> Iterator[Entry]:
        for folder in _folders(self.root):
            for item in folder:
                if item.name.startswith(UNFINISHED):
                    continue
                try:
                    stat = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                used = max(stat.st_atime, stat.st_mtime)
                yield Entry(item.name, stat.st_size, used, Path(item.path))

    def _account(self, size: int) -> None:
        self._written_since_scan += size
        if self._size is None or self._written_since_scan > self.max_bytes * _RESCAN_SHARE:
            self._size = sum(entry.size for entry in self._scan())
            self._written_since_scan = 0
        else:
            self._size += size
        if self._size > self.max_bytes:
            self._evict()

    def _evict(self) -> None:
        """Delete the least recently used entries, unless another process is at it already."""
        import filelock

        try:
            with filelock.FileLock(self.root / ".lock", timeout=0):
                entries = sorted(self._scan(), key=lambda entry: entry.used)
                size = sum(entry.size for entry in entries)
                goal = self.max_bytes * _EVICT_TO
                count = 0
                while size > goal and count < len(entries):
                    entries[count].path.unlink(missing_ok=True)
                    size -= entries[count].size
                    count += 1
                _remove_abandoned(self.root)
        except filelock.Timeout:
            return
        self._size = size
        self._evicted += count
        events.emit("store-evicted", root=str(self.root), entries=count, size=size)

    def _discard(self, key: str, path: Path) -> None:
        self._misses += 1
        self._corrupted += 1
        events.emit("store-corrupted", root=str(self.root), key=key)
        # Where deleting is not allowed, it is absent for us all the same.
        with suppress(OSError):
            path.unlink()
        self._warn(
            "corrupted", f"{path}: the entry is damaged and was deleted; it will be made again"
        )

    def _unwritable(self, error: OSError) -> None:
        self._writable = False
        self._warn(
            "write",
            f"{self.root}: nothing is kept from now on, because writing there fails: {error}. "
            f"Set {flags.CACHE_DIR.name} to a writable folder, or {flags.CACHE.name}=off",
        )

    def _warn(self, topic: str, text: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            warnings.warn(TilewrightWarning(text), stacklevel=3)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r}, at most {human_bytes(self.max_bytes)})"


def default_store() -> Store | None:
    """The user's store as the flags say, or None when TILEWRIGHT_CACHE is off.

    One object per folder and size, so that its warnings come once per process. Raises FlagError.
    """
    if not flags.CACHE.get():
        return None
    root = flags.CACHE_DIR.get()
    if root is None:
        import platformdirs

        root = Path(platformdirs.user_cache_dir("tilewright", appauthor=False))
    return _store(root, flags.CACHE_SIZE.get())


@lru_cache(maxsize=16)
def _store(root: Path, max_bytes: int) -> Store:
    return Store(root, max_bytes)


def _header(key: str, data: bytes) -> bytes:
    # The key is part of the sum, so that a file under a wrong name is noticed.
    digest = hashlib.blake2b(key.encode() + b"\n", digest_size=_DIGEST_SIZE)
    digest.update(data)
    return _MAGIC + digest.digest()


def _use(path: Path) -> None:
    """Note that an entry was used just now. Raises OSError."""
    os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def _folders(root: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    """The contents of each folder that may hold entries; a folder that is missing holds none."""
    try:
        with os.scandir(root) as top:
            names = [item.path for item in top if len(item.name) == 2 and item.is_dir()]
    except OSError:
        return
    for name in names:
        try:
            with os.scandir(name) as items:
                yield items
        except FileNotFoundError:
            continue


def _remove_abandoned(root: Path) -> None:
    """Delete what writers that were killed left behind."""
    oldest = time.time() - _ABANDONED_SECONDS
    for folder in _folders(root):
        for item in folder:
            # A writer that lives may finish, and its file be renamed, at this very moment.
            with suppress(FileNotFoundError):
                if item.name.startswith(UNFINISHED) and item.stat().st_mtime < oldest:
                    os.unlink(item.path)


def _can_write(folder: Path) -> bool:
    """The folder, or the nearest one above it that exists, may be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)
