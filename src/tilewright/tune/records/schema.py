"""The tables of a database of records, and the upgrade of older versions.

Version n of the schema is the result of the first n STEPS. A new database runs all of them, an
older one the missing ones; a newer version is rejected.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from tilewright.base.errors import InputError

# # In the file header: identifies a database of records.
APPLICATION: Final = 0x54574C52

# A trial stores its key and a checksum of its contents, so that it is usable without the other
# tables and damage to it is detected.
_FIRST: Final = """
create table runs (
  id text primary key, model text not null, started real not null, compiler text not null,
  settings text not null, process text not null, ended real);
create table tasks (
  digest text primary key, key text not null, name text not null, operator text not null,
  family text not null, shapes text not null, dtypes text not null, layouts text not null,
  constants text not null, target text not null, machine text not null, processor text not null,
  threads integer not null, math text not null, schedules integer not null);
create index tasks_operator on tasks (operator);
create table trials (
  id integer primary key, digest text not null, run text not null, candidate text not null,
  status text not null, rounds text not null, seconds real, reason text not null,
  noise real not null, build_seconds real not null, run_seconds real not null, predicted real,
  strategy text not null, time real not null, sum text not null,
  unique (digest, run, candidate));
create table choices (
  id integer primary key, digest text not null, run text not null, candidate text,
  seconds real not null, default_seconds real not null, time real not null, sum text not null,
  unique (digest, run, time));
"""
_FEATURES: Final = """
create table features (
  trial integer primary key, name text not null, version integer not null, data blob not null);
"""
STEPS: Final = (_FIRST, _FEATURES)
VERSION: Final = len(STEPS)


def version(db: sqlite3.Connection) -> int:
    """The schema version of a database; 0 if it has no tables.

    Raises InputError for another kind of database, and for a newer version.
    """
    (found,) = db.execute("pragma user_version").fetchone()
    (application,) = db.execute("pragma application_id").fetchone()
    (tables,) = db.execute("select count(*) from sqlite_master").fetchone()
    if application != APPLICATION and (application or found or tables):
        raise InputError(
            "it is another kind of database, not tuning records",
            hint="give another file",
        )
    if found > VERSION:
        raise InputError(
            f"its records have version {found}; this compiler supports up to version {VERSION}",
            hint="use a newer tilewright, or its `tilewright records export`",
        )
    return int(found)


def fault(db: sqlite3.Connection) -> str:
    """How the tables differ from those of their version; empty if they do not."""
    whole = sqlite3.connect(":memory:", isolation_level=None)
    for step in STEPS[: version(db)]:
        whole.executescript(step)
    expected, found = (_tables(each) for each in (whole, db))
    whole.close()
    return "" if found == expected else "its tables are not those of tuning records"


def _tables(db: sqlite3.Connection) -> set[tuple[str, ...]]:
    return set(db.execute("select type, name, tbl_name, sql from sqlite_master"))


def upgrade(db: sqlite3.Connection, path: Path) -> None:
    """Upgrade a database to the current version, in one transaction. Raises as `version` does."""
    db.execute("begin immediate")
    try:
        for step in STEPS[version(db) :]:
            for statement in step.split(";"):
                db.execute(statement)
        db.execute(f"pragma application_id = {APPLICATION}")
        db.execute(f"pragma user_version = {VERSION}")
        db.execute("commit")
    except BaseException:
        if db.in_transaction:  # where the disk is full, SQLite has ended it itself
            db.execute("rollback")
        raise
