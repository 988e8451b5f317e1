"""Opening a database of records: in a private place, undamaged, of the current version.

A file that others could have written is not opened: SQLite does not promise to be safe on a
malicious file. A damaged file is moved aside, and its readable rows are recovered.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tilewright.base import private
from tilewright.base.errors import InputError, TilewrightWarning
from tilewright.base.files import check_writable
from tilewright.base.text import reason
from tilewright.tune.records import published, salvage, schema

BUSY_SECONDS: Final = 60.0  # how long a process waits for other writers
_MAGIC: Final = b"SQLite format 3\0"
_NOT_NOW: Final = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_CANTOPEN",
    "SQLITE_PERM",
    "SQLITE_READONLY",
    "SQLITE_FULL",
    "SQLITE_NOMEM",
    "SQLITE_AUTH",
)
_WAL_HEADER: Final = 32
_FRAME_HEADER: Final = 24


def for_writing(path: Path) -> sqlite3.Connection:
    """A connection for writing; creates, repairs or upgrades the file as needed.

    Raises InputError for a path that cannot be written or that others could have written to, and
    for a file with other contents or of a newer version.
    """
    try:
        private.make_folder(path.parent)
        check_place(path)
        _expect_writable(path)
        with alone(path):
            _repair(path)
            db = _connected(path, "rwc")
            _set_up(db, path)
    except (OSError, sqlite3.OperationalError) as error:
        raise InputError(
            f"tuning records cannot be stored there: {reason(error)}",
            where=str(path),
            hint="give a file in a writable folder",
        ) from None
    except InputError as error:
        raise error.at(str(path)) from None
    return db


def for_reading(path: Path) -> sqlite3.Connection:
    """A read-only connection, for folders that may be read-only.

    Raises InputError for a missing file, and as `for_writing`.
    """
    try:
        if not path.exists():
            raise InputError("there are no tuning records", hint="check the path")
        check_place(path)
        db = _reading(path)
        if schema.version(db) < schema.VERSION:
            db = _upgraded_copy(db, path)
        return db
    except (OSError, sqlite3.DatabaseError) as error:
        raise InputError(
            f"the tuning records cannot be read: {reason(error)}",
            where=str(path),
            hint="a damaged file is repaired if its folder is writable",
        ) from None
    except InputError as error:
        raise error.at(str(path)) from None


def _expect_writable(path: Path) -> None:
    """Raise InputError if no file can be made beside it, such as in /proc: whatever is wrong there,
    a lock is tried again for BUSY_SECONDS."""
    try:
        check_writable(path)
    except OSError as error:
        raise InputError(
            f"no file can be made in the folder {path.parent}: {reason(error)}",
            hint="give a file in a writable folder",
        ) from None


def check_place(path: Path) -> None:
    """Raise InputError for what is not a file, or one that another user could have written.
    Raises OSError."""
    if path.exists() and not path.is_file():
        raise InputError("it is not a file", hint="give a file for tuning records")
    why = private.objection(path.parent)
    if not why and path.exists():
        found = private.objection_to(path.stat(), "file")
        why = f"it {found}" if found else ""
    if why:
        raise InputError(
            f"others could have written these records: {why}",
            hint="import what they export: tilewright records import",
        )


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes from creating, repairing or publishing the records. Raises OSError."""
    import filelock

    lock = filelock.FileLock(f"{path}.lock", timeout=BUSY_SECONDS, mode=0o600)
    try:
        with lock:
            yield
    except filelock.Timeout:
        raise OSError(f"another process holds {path}.lock") from None


def _connected(path: Path, mode: str, more: str = "") -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}{more}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def _set_up(db: sqlite3.Connection, path: Path) -> None:
    if schema.version(db) < schema.VERSION:
        schema.upgrade(db, path)
    # A file system without shared memory keeps SQLite's older journal, which is safe too.
    db.execute("pragma journal_mode = wal")
    path.chmod(0o600)


def _reading(path: Path) -> sqlite3.Connection:
    try:
        db = _connected(path, "ro")
        db.execute("select count(*) from sqlite_master").fetchone()
        return db
    except sqlite3.OperationalError:
        # A read-only folder cannot hold SQLite's shared memory; it has no writers either.
        journal = Path(f"{path}-wal")
        if journal.exists() and journal.stat().st_size:
            raise
    return _connected(path, "ro", "&immutable=1")


def _upgraded_copy(db: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.backup(copy)
    db.close()
    schema.upgrade(copy, path)
    return copy


def _repair(path: Path) -> None:
    """Move a damaged database aside and recover its readable rows into a new one."""
    if not path.exists() or not path.stat().st_size:
        return
    lost = _lost_writes(path)
    if lost:
        _warn(f"{path}: its journal was damaged; the last {lost} writes in it are lost")
    why = _damage(path)
    if not why:
        return
    aside = _aside(path)
    count = salvage.salvaged(aside, path)
    found = f"{count} trials were recovered" if count else "nothing could be recovered"
    _warn(
        f"{path}: the tuning records were damaged ({why}): {found}. The damaged file is now {aside}"
    )


def _damage(path: Path) -> str:
    """Describe the damage to a database; empty if it is intact.

    Raises InputError for a file that is not a database: it stays where it is.
    """
    with path.open("rb") as file:
        is_database = file.read(len(_MAGIC)) == _MAGIC
    if not is_database and not published.place(path).exists():
        raise InputError(
            "it is not a database of tuning records", hint="give another file"
        )
    if not is_database:
        return "it does not start like a database"
    try:
        db = _connected(path, "rw")
        try:
            found = schema.fault(db)
            if not found:
                (found,) = db.execute("pragma quick_check(1)").fetchone()
            return "" if found == "ok" else " ".join(str(found).split())
        finally:
            db.close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname.startswith(_NOT_NOW):
            raise  # its contents are unknown
        return str(error)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return str(error)  # SQLite's messages quote damaged names unchanged


def _aside(path: Path) -> Path:
    """Rename the database, with its journal; returns the new path."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}-{os.getpid()}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside


def _lost_writes(path: Path) -> int:
    """The number of commits in the journal after damage, which SQLite skips silently."""
    journal = Path(f"{path}-wal")
    before = _commits(journal)
    if not before:
        return 0
    db = _connected(path, "rw")
    try:
        (_, frames, _) = db.execute("pragma wal_checkpoint(passive)").fetchone()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return 0  # the database itself is damaged, which is reported elsewhere
    finally:
        db.close()
    return sum(number > frames for number in before)


def _commits(journal: Path) -> list[int]:
    """The numbers of the frames that end a commit, according to their headers."""
    try:
        data = journal.read_bytes()
    except OSError:
        return []
    if len(data) < _WAL_HEADER:
        return []
    (size,) = struct.unpack_from(">I", data, 8)
    step = _FRAME_HEADER + (size if size else 1)
    salts = data[16:24]
    found = []
    for number, at in enumerate(range(_WAL_HEADER, len(data) - step + 1, step), 1):
        (pages,) = struct.unpack_from(">I", data, at + 4)
        if data[at + 8 : at + 16] != salts:
            break
        if pages:
            found.append(number)
    return found


def _warn(text: str) -> None:
    warnings.warn(TilewrightWarning(text), stacklevel=5)
