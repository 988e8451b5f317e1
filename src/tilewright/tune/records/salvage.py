"""What can still be read of a damaged database, row by row, into a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tilewright.tune.records import schema

_TABLES: Final = ("runs", "tasks", "trials", "choices", "features")
_LEAST_ROW: Final = 16  # bytes that a row takes at least: how many there can be
_OF_A_PAGE: Final = 256  # rows at most


def salvaged(damaged: Path, new: Path) -> int:
    """Copy the rows that can be read; how many trials there were.

    The new file is there when this returns, empty where nothing could be read. Rows whose contents
    are damaged are copied too: their sums tell, and they are never used. Raises OSError,
    sqlite3.Error for what concerns the new file.
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
        return  # a value that its column cannot have: the row is damaged


def _rows(path: Path, table: str) -> Iterator[tuple[Any, ...]]:
    """The readable rows of a table: behind a damaged page reading goes on with the next number.

    Columns are by their places: their names may be what is damaged.
    """
    most = path.stat().st_size // _LEAST_ROW + 1
    last, failures = 0, 0
    with closing(_opened(path)) as db:
        while last < most:
            try:
                query = f"select rowid, * from {table} where rowid > ? order by rowid"
                for number, *row in db.execute(query, (last,)):
                    if not last < number <= most:
                        break  # pages that lead in a circle
                    last, failures = number, 0
                    yield tuple(row)
                else:
                    return
            except UnicodeDecodeError:
                return  # SQLite cites a damaged name: that of a table, for all its rows
            except sqlite3.DatabaseError as error:
                if _hopeless(error):
                    return
            # A page has so few rows; where more are lost, more than a page is.
            failures += 1
            last += 1 if failures < _OF_A_PAGE else _OF_A_PAGE // 4


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True)


def _hopeless(error: sqlite3.DatabaseError) -> bool:
    """The table is not there, or the file is not a database at all."""
    text = str(error)
    return any(words in text for words in ("no such", "not a database", "schema"))
