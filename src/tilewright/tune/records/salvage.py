"""Recover the readable rows of a damaged database into a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tilewright.tune.records import schema

_TABLES: Final = ("runs", "tasks", "trials", "choices", "features")
_LEAST_ROW: Final = 16  # minimum bytes per row: bounds the number of rows
_OF_A_PAGE: Final = 256  # maximum rows per page


def salvaged(damaged: Path, new: Path) -> int:
    """Copy the readable rows; returns the number of trials.

    The new file exists on return, empty if nothing could be read. Rows with damaged contents are
    copied too: their checksums mark them, so they are never used. Raises OSError, and sqlite3.Error
    if the new file fails.
    """
    with closing(sqlite3.connect(new, isolation_level=None)) as db:
        schema.upgrade(db, new)
        db.execute("begin")
        for table in _TABLES:
            count = len(db.execute(f"pragma table_info({table})").fetchall())
            into = f"insert or ignore into {table} values ({', '.join('?' * count)})"
            for row in _rows(damaged, table):
                if len(row) == count:
                    _insert(db, into, row)
        db.execute("commit")
        (count,) = db.execute("select count(*) from trials").fetchone()
    return int(count)


def _insert(db: sqlite3.Connection, into: str, row: tuple[Any, ...]) -> None:
    try:
        db.execute(into, row)
    except sqlite3.IntegrityError:
        return  # a value that violates its column's constraint: the row is damaged


def _rows(path: Path, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the readable rows of a table; after a damaged page, continue with the next row number.

    Columns are accessed by position, because their names may be damaged.
    """
    most = path.stat().st_size // _LEAST_ROW + 1
    last, failures = 0, 0
    with closing(_opened(path)) as db:
        while last < most:
            try:
                query = f"select rowid, * from {table} where rowid > ? order by rowid"
                for number, *row in db.execute(query, (last,)):
                    if not last < number <= most:
                        break  # pages linked in a cycle
                    last, failures = number, 0
                    yield tuple(row)
                else:
                    return
            except UnicodeDecodeError:
                return  # SQLite quotes a damaged table name, which affects all its rows
            except sqlite3.DatabaseError as error:
                if _hopeless(error):
                    return
            # Skip single rows first; after a page's worth of failures, skip faster: more than a
            # page is lost.
            failures += 1
            last += 1 if failures < _OF_A_PAGE else _OF_A_PAGE // 4


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True)


def _hopeless(error: sqlite3.DatabaseError) -> bool:
    """Whether the table is missing, or the file is not a database."""
    text = str(error)
    return any(words in text for words in ("no such", "not a database", "schema"))
