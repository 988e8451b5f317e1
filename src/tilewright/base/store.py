"""A content-addressed store on disk: checked on reading, atomic on writing, capped in size.

An entry is one file, ``root/ab/abcdef...``: a magic line, a checksum over key and data, the data.
Writers rename a finished file into place, so a reader or a crash never sees half an entry, and any
number of processes may share a store. The time of last use is the file's time of last access: that
of its last change stays what it was, so that it tells whether somebody wrote to the file.

What is read here is run, so the folder has to be private (base/private.py), and an entry is a plain
user's own file. Checksums detect damage; they do not protect against a writer.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from tilewright.base import events, flags, private
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import TilewrightWarning
from tilewright.base.files import UNFINISHED, write_whole
from tilewright.base.text import human_bytes, reason

_MAGIC: Final = b"tilewright store 1\n"
_DIGEST_SIZE: Final = 32
_HEADER: Final = len(_MAGIC) + _DIGEST_SIZE
_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{2,199}")
_ABANDONED_SECONDS: Final = 3600.0
# Seconds by which the clocks of a disk and of its users may differ.
_CLOCKS_DIFFER: Final = 86400.0
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


class FileStore:
    """Bytes by key, on disk below ``root``, at most about ``max_bytes`` of them.

    Trouble with the disk never fails the caller: an unwritable folder is one TilewrightWarning and
    nothing is stored from then on; a damaged entry is deleted, reported once, and counts as absent.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self._writable = True
        self._private: tuple[int, int] | None = (
            None  # device and inode of the folder found so
        )
        self._refused = False
        self._warned: set[str] = set()
        self._hits = self._misses = self._corrupted = self._evicted = 0
        self._size: int | None = None
        self._written_since_scan = 0

    def get(self, key: str) -> bytes | None:
        """The data put under ``key``, or None. Counts as a use. Raises ValueError for a bad key."""
        path = self._path(key)
        if not self._trusted():
            self._misses += 1
            return None
        try:
            whole = self._read(path)
        except OSError as error:
            # No such folder, or a file in its place: treated as empty; put() reports the error.
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                self._warn(
                    "read", f"{self.root}: its entries cannot be read: {reason(error)}"
                )
            self._misses += 1
            return None
        header, data = whole[:_HEADER], whole[_HEADER:]
        if header != _header(key, data):
            self._discard(key, path)
            return None
        self._hits += 1
        # It fails in a store that is read-only, or if evicted this moment: the data is good anyway.
        with suppress(OSError):
            _use(path)
        return data

    def peek(self, key: str) -> bytes | None:
        """As `get`, to show it: no use, and a damaged entry stays."""
        path = self._path(key)
        with suppress(OSError):
            if self._trusted():
                whole = self._read(path)
                data = whole[_HEADER:]
                return data if whole[:_HEADER] == _header(key, data) else None
        return None

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``, replacing what was there. Raises ValueError for a bad key.

        Data that alone exceeds the cap is not kept.
        """
        path = self._path(key)
        size = _HEADER + len(data)
        if not self._writable or size > self.max_bytes:
            return
        parts = (_header(key, data), data)

        def write(path: Path) -> None:
            write_whole(path, lambda file: file.writelines(parts), private=True)

        self._keep(path, size, write)

    def find(self, key: str) -> Path | None:
        """The file that `adopt` made under ``key``, or None. Counts as a use."""
        path = self._path(key)
        if not self._trusted() or (found := _lstat(path)) is None:
            self._misses += 1
            return None
        if private.objection_to(found, "file"):
            self._discard(key, path)
            return None
        with suppress(OSError):
            _use(path)
        self._hits += 1
        return path

    def adopt(
        self, key: str, size: int, write: Callable[[Path], object]
    ) -> Path | None:
        """Keep under ``key`` the file of about ``size`` bytes that ``write(path)`` makes at once.

        For data that is read in place and carries its own checksum: whoever finds it damaged calls
        `discard`. A file larger than half the cap is not made. The file, or None.
        """
        path = self._path(key)
        if not self._writable or size > self.max_bytes // 2:
            return None
        # Another process may evict it as soon as it exists.
        return path if self._keep(path, size, write) and path.exists() else None

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
            writable=self._writable and self._trusted() and _can_write(self.root),
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

    def _trusted(self) -> bool:
        """The folder is private, or not there yet; otherwise the store is off, and says so once."""
        if self._refused:
            return False
        try:
            found = self.root.stat()
        except OSError:  # writing there reports what is wrong
            return True
        if self._private == (found.st_dev, found.st_ino):
            return True
        try:
            why = private.objection(self.root)
        except OSError as error:
            why = str(error)
        if why:
            self._refused = True
            self._warn(
                "private",
                f"{self.root}: the cache is off, because others could have written to it: {why}. "
                f"Delete it, or set {flags.CACHE_DIR.name} to a folder of your own",
            )
            return False
        with suppress(OSError):  # read-only, and then nobody writes there
            private.close_folder(self.root)
        self._private = found.st_dev, found.st_ino
        return True

    def _keep(self, path: Path, size: int, write: Callable[[Path], object]) -> bool:
        """Write an entry of this many bytes, and make room for it."""
        for again in (True, False):
            try:
                if not self._prepare(path.parent):
                    return False
                write(path)
                # The system's clock for files lags the one that uses are noted by.
                with suppress(OSError):
                    _use(path)
                self._account(size)
            except OSError as error:
                # Somebody deletes the folder meanwhile: once does not mean that the disk fails.
                if again and isinstance(error, FileNotFoundError):
                    continue
                self._unwritable(error)
                return False
            return True
        return False

    def _prepare(self, folder: Path) -> bool:
        """Make a folder for entries, unless it cannot be trusted. Raises OSError."""
        private.make_folder(self.root)
        if not self._trusted():
            return False
        private.make_folder(folder)
        return True

    def _read(self, path: Path) -> bytes:
        """The contents of an entry that is a regular file and not too large. Raises OSError."""
        # A link is not followed, and a pipe not waited for.
        try:
            opened = os.open(
                path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                return b""
            raise
        with open(opened, "rb") as file:
            found = os.fstat(opened)
            if private.objection_to(found, "file") or found.st_size > self.max_bytes:
                return b""
            return file.read(found.st_size + 1)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"{key!r} is not a key: expected 3 to 200 of letters, digits and _.-"
            )
        return self.root / key[:2] / key

    def _scan(self) -> Iterator[Entry]:
        latest = time.time() + _CLOCKS_DIFFER
        for folder in _folders(self.root):
            for item in folder:
                if item.name.startswith(UNFINISHED):
                    continue
                try:
                    stat = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                used = max(stat.st_atime, stat.st_mtime)
                # The clock was set back since: the age is unknown, and the entry must not stay
                # forever.
                used = used if used < latest else 0.0
                yield Entry(item.name, stat.st_size, used, Path(item.path))

    def _account(self, size: int) -> None:
        self._written_since_scan += size
        if (
            self._size is None
            or self._written_since_scan > self.max_bytes * _RESCAN_SHARE
        ):
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
            "corrupted",
            f"{path}: the entry is damaged and was deleted; it will be compiled again",
        )

    def _unwritable(self, error: OSError) -> None:
        self._writable = False
        self._warn(
            "write",
            f"{self.root}: caching is off from now on, because writing failed: {error}. "
            f"Set {flags.CACHE_DIR.name} to a writable folder, or {flags.CACHE.name}=off",
        )

    def _warn(self, topic: str, text: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            warnings.warn(TilewrightWarning(text), stacklevel=3)

    def __repr__(self) -> str:
        return f"FileStore({str(self.root)!r}, at most {human_bytes(self.max_bytes)})"


def default_store() -> FileStore | None:
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
def _store(root: Path, max_bytes: int) -> FileStore:
    return FileStore(root, max_bytes)


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
            names = [item.path for item in top if _is_folder(item)]
    except OSError:
        return
    for name in names:
        try:
            with os.scandir(name) as items:
                yield items
        except FileNotFoundError:
            continue


def _is_folder(item: os.DirEntry[str]) -> bool:
    return len(item.name) == 2 and item.is_dir(follow_symlinks=False)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _remove_abandoned(root: Path) -> None:
    """Delete files left by killed writers."""
    now = time.time()
    for folder in _folders(root):
        for item in folder:
            # A writer that lives may finish, and its file be renamed, at this very moment.
            with suppress(FileNotFoundError):
                if not item.name.startswith(UNFINISHED):
                    continue
                age = now - item.stat(follow_symlinks=False).st_mtime
                if age > _ABANDONED_SECONDS or age < -_CLOCKS_DIFFER:
                    os.unlink(item.path)


def _can_write(folder: Path) -> bool:
    """The folder, or the nearest one above it that exists, may be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)
