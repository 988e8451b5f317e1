"""The database of records: every trial is written before it is acknowledged.

SQLite with a write-ahead journal: what `add` has written survives a SIGKILL of the process, and a
power loss once the system has written it to the disk, usually within half a minute; a choice
survives both at once. Several processes may tune at once; each trial is a short transaction, and a
writer waits up to a minute for another. Trials are append-only. Within a run, a candidate of a task
has one trial: the first one counts and later ones are ignored. In another run it is another trial.
"""

from __future__ import annotations

import secrets
import sqlite3
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from tilewright.base.errors import InputError, TilewrightWarning
from tilewright.base.files import write_whole
from tilewright.base.text import plural, reason
from tilewright.tune.base import Candidate, Trial
from tilewright.tune.records import columns, jsonl, opening, published
from tilewright.tune.records.best import best, chosen
from tilewright.tune.records.columns import RecordFilter
from tilewright.tune.records.key import Key
from tilewright.tune.records.owner import alive, myself
from tilewright.tune.records.rows import Choice, Features, Record, TunerRun

Row = Record | Choice
_EVERYTHING: Final = RecordFilter()
_BROKEN: Final = (
    "SQLITE_CORRUPT",
    "SQLITE_NOTADB",
    "SQLITE_IOERR_SHORT_READ",
    "SQLITE_READONLY_DBMOVED",
)


class Records:
    """The records in one file; as a context manager it closes itself.

    A full or failing disk loses no trial while the database is open: rows that cannot be written
    stay in memory, a TilewrightWarning reports it, and `close` writes them wherever there is room.
    """

    def __init__(self, path: Path, write: bool = True) -> None:
        """Open the file; create it if writing. Raises InputError; see `opening`."""
        self.path = published.itself(path)
        self._writes = write
        self._open()
        self._using = threading.RLock()
        self._waiting: list[Row] = []
        self._warned: set[str] = set()
        if write:
            self._publish()

    def _open(self) -> None:
        of = opening.for_writing if self._writes else opening.for_reading
        self._db = of(self.path)
        # Damaged text must reach the checksum that detects it, not abort the read.
        self._db.text_factory = lambda data: data.decode(errors="replace")
        found = self.path.stat()
        self._file = found.st_dev, found.st_ino

    # ----------------------------------------------------------------------------------- runs

    def begin(self, model: str, settings: str = "", compiler: str = "") -> TunerRun:
        """Start a new run of a tuner on a model, owned by this process."""
        run = TunerRun(secrets.token_hex(16), model, time.time(), compiler, settings)
        with self._transaction():
            self._db.execute(columns.ADD_RUN, (*columns.of_run(run), myself(), None))
        return run

    def resume(self, model: str, settings: str = "") -> TunerRun | None:
        """Take over the latest unfinished run with this model and these settings whose process is
        dead. None if there is none."""
        with self._transaction():
            found = self._db.execute(columns.UNFINISHED, (model, settings)).fetchall()
            for *parts, process in found:
                if not alive(process):
                    run = columns.run(parts)
                    self._db.execute(columns.TAKE_RUN, (myself(), run.id))
                    return run
        return None

    def end(self, run: TunerRun) -> None:
        """Mark the run as finished, so that `resume` no longer finds it."""
        with self._transaction():
            self._db.execute(columns.END_RUN, (time.time(), run.id))

    # ------------------------------------------------------------------------------- writing

    def add(
        self,
        run: TunerRun,
        key: Key | str,
        task: str,
        trial: Trial,
        features: Features | None = None,
    ) -> None:
        """Record a trial of a task; it is written on return (exceptions: see the class).

        key: as `Task.key`. Raises InputError for an invalid key.
        """
        key = Key.parse(key) if isinstance(key, str) else key
        self._append(Record(key, task, run, time.time(), trial, features))

    def choose(
        self,
        run: TunerRun,
        key: Key | str,
        task: str,
        candidate: Candidate,
        seconds: float,
        default_seconds: float,
    ) -> bool:
        """Let `compile` use a candidate, if it beats the default by MARGIN and earlier choices.

        Both times are from this run. Returns whether it is used; it is recorded in any case.
        """
        key = Key.parse(key) if isinstance(key, str) else key
        made = Choice(key, task, run, time.time(), candidate, seconds, default_seconds)
        self._append(made)
        self._publish()
        same = self.choices(RecordFilter(digest=key.digest))
        return best(same).get(key.digest) == made

    def withdraw(self, run: TunerRun, key: Key | str, task: str) -> None:
        """Let `compile` use the default schedule again, until the next choice."""
        key = Key.parse(key) if isinstance(key, str) else key
        self._append(Choice(key, task, run, time.time(), None))
        self._publish()

    def merge(self, rows: Iterable[Row]) -> int:
        """Add rows recorded elsewhere, skipping known ones; returns how many were new."""
        with self._transaction():
            count = sum(self._insert(row) for row in rows)
        self._publish()
        return count

    def prune(self, found: Sequence[Record]) -> int:
        """Delete trials; returns how many. Choices are kept."""
        with self._transaction():
            for r in found:
                self._db.execute(columns.DELETE, columns.identity(r))
            self._db.execute(columns.DELETE_FEATURES)
            self._db.execute(columns.DELETE_TASKS)
            self._db.execute(columns.DELETE_RUNS)
        with self._using:
            self._db.execute("vacuum")
        return len(found)

    def _append(self, row: Row) -> None:
        with self._using:
            self._waiting.append(row)
            try:
                self._write_waiting()
            except (sqlite3.DatabaseError, OSError, InputError) as error:
                self._warn(
                    f"{self.path}: a trial could not be written ({reason(error)}). Tuning "
                    "continues; the measurements are kept in memory and written when possible"
                )

    def _write_waiting(self) -> None:
        """Write the waiting rows; into a new file if this one is damaged or was moved away.

        Raises sqlite3.DatabaseError, OSError and InputError.
        """
        for again in (True, False):
            try:
                with self._transaction(self._must_wait()):
                    for row in self._waiting:
                        self._insert(row)
                # A process that found it damaged may have moved it aside, with the rows just
                # written.
                if self._is_there():
                    break
            except sqlite3.DatabaseError as error:
                if not again or not _is_broken(error):
                    raise
            self._db.close()
            self._open()
        self._waiting.clear()

    def _is_there(self) -> bool:
        """Whether the path still names the open file."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._file

    def _insert(self, row: Row) -> bool:
        """Insert a row; returns whether it is new."""
        run = (*columns.of_run(row.run), "", row.run.started)
        self._db.execute(columns.ADD_RUN, run)
        self._db.execute(columns.ADD_TASK, columns.of_task(row.key, row.task))
        if isinstance(row, Choice):
            return (
                self._db.execute(columns.ADD_CHOICE, columns.of_choice(row)).rowcount
                > 0
            )
        added = self._db.execute(columns.ADD_TRIAL, columns.of_record(row))
        if added.rowcount > 0 and row.features is not None:
            f = row.features
            values = (added.lastrowid, f.set, f.version, f.data)
            self._db.execute(columns.ADD_FEATURES, values)
        return added.rowcount > 0

    # ------------------------------------------------------------------------------- reading

    def records(self, wanted: RecordFilter = _EVERYTHING) -> list[Record]:
        """The trials that match a filter, in insertion order."""
        return self._read(columns.RECORDS, wanted, columns.record)

    def choices(self, wanted: RecordFilter = _EVERYTHING) -> list[Choice]:
        """The choices and withdrawals that match a filter, in insertion order."""
        return self._read(columns.CHOICES, wanted, columns.choice)

    def trials(self, key: Key | str) -> list[Trial]:
        """All trials of a task from all runs: the starting point of a resumed search."""
        digest = Key.parse(key).digest if isinstance(key, str) else key.digest
        return [r.trial for r in self.records(RecordFilter(digest=digest))]

    def _read(
        self, query: str, wanted: RecordFilter, row_of: columns.RowOf[columns.T]
    ) -> list[columns.T]:
        condition, values = wanted.condition
        with self._using:
            statement = f"{query} where {condition} order by r.id"
            try:
                read = [row_of(row) for row in self._db.execute(statement, values)]
            except sqlite3.DatabaseError as error:
                raise InputError(
                    f"the tuning records cannot be read: {error}",
                    where=str(self.path),
                    hint="open them once in a writable folder, which repairs them",
                ) from None
        found = [row for row in read if row is not None]
        if len(found) < len(read):
            lost = plural(len(read) - len(found), "row")
            self._warn(
                f"{self.path}: {lost} of the tuning records are damaged and skipped"
            )
        return found

    # ------------------------------------------------------------------------------- the file

    def close(self) -> None:
        """Write the waiting rows, here or to JSON lines elsewhere, and close the file."""
        with self._using:
            try:
                if self._waiting:
                    self._rescue()
            finally:
                self._db.close()

    def _rescue(self) -> None:
        rows = list(self._waiting)
        try:
            self._write_waiting()
            return
        except (sqlite3.DatabaseError, OSError, InputError):
            self._waiting.clear()
        place = Path(tempfile.gettempdir(), f"tilewright-{secrets.token_hex(8)}.jsonl")
        text = "".join(jsonl.line(row) for row in rows)
        try:
            write_whole(place, lambda file: file.write(text.encode()), private=True)
        except OSError as error:
            self._warn(
                f"{plural(len(rows), 'trial')} could not be written to {self.path} or {place}: "
                f"{reason(error)}"
            )
            return
        self._warn(
            f"{plural(len(rows), 'trial')} not written to {self.path} are in {place}: "
            "tilewright records import"
        )

    def _publish(self) -> None:
        """Update what `compile` reads. An error is only a warning: no record is lost."""
        try:
            with opening.alone(self.path):
                published.write(self.path, chosen(self.choices()))
        except (InputError, OSError) as error:
            self._warn(
                f"{self.path}: compile cannot use the latest choices: {reason(error)}"
            )

    def _must_wait(self) -> bool:
        """Whether the disk must have the waiting rows. A wait takes 40 ms and, on a busy disk, a
        second, so it is left out for trials; an older journal could be damaged without it."""
        (journal,) = self._db.execute("pragma journal_mode").fetchone()
        has_choice = any(isinstance(row, Choice) for row in self._waiting)
        return has_choice or journal != "wal"

    @contextmanager
    def _transaction(self, through: bool = True) -> Iterator[None]:
        """through: wait until the disk has this and all that was written before."""
        with self._using:
            level = "full" if through else "normal"
            self._db.execute(f"pragma synchronous = {level}")
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                raise

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(TilewrightWarning(text), stacklevel=4)

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _is_broken(error: sqlite3.DatabaseError) -> bool:
    """Whether reopening may help: the file is damaged, or could not be reopened last time."""
    name = getattr(error, "sqlite_errorname", None)  # None if the connection is closed
    return name is None or name.startswith(_BROKEN)
