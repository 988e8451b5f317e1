"""Databases that are damaged or of another version: found, said, and saved as far as possible."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tune.records.made import KEY, ROWS, RUN, failed, record, trial
from tilewright.base.errors import InputError, TilewrightWarning
from tilewright.tune.records import columns, opening, schema
from tilewright.tune.records.current import current
from tilewright.tune.records.database import Records
from tilewright.tune.records.published import NOTHING

COUNT = 400
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of many trials, closed."""
    path = tmp_path / "data" / "records.sqlite"
    with Records(path) as records:
        records.merge([record(n) for n in range(COUNT)])
    assert not Path(f"{path}-wal").exists()
    return path


def mended(path: Path) -> set[float]:
    """The times of the trials that are left; a warning says that something was damaged."""
    with pytest.warns(TilewrightWarning, match="were damaged") as said:
        records = Records(path)
    with records:
        found = {r.time for r in records.records()}
        assert (
            f"{len(found)} trials were recovered" in str(said[0].message) or not found
        )
        records.add(RUN, replace(KEY, threads=9), "k", trial(0))
    (aside,) = path.parent.glob("*.damaged-*")
    assert str(aside) in str(said[0].message)
    Records(path).close()  # it is sound now, and nothing more is said
    return found


ALL = {2000.0 + n for n in range(COUNT)}


def pages_of(path: Path, table: str) -> list[int]:
    """The numbers of the leaf pages of a table, from 0 on."""
    size = path.stat().st_size // PAGE
    data = path.read_bytes()
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute(
            "select rootpage from sqlite_master where name = ?", (table,)
        ).fetchone()
    assert data[(root - 1) * PAGE] == 5, "the table has one page"
    cells = int.from_bytes(data[(root - 1) * PAGE + 3 :][:2], "big")
    found = []
    for n in range(cells):
        at = (root - 1) * PAGE + 12 + 2 * n
        cell = (root - 1) * PAGE + int.from_bytes(data[at : at + 2], "big")
        found.append(int.from_bytes(data[cell : cell + 4], "big") - 1)
    assert all(0 < page < size for page in found)
    return found


def overwrite(path: Path, at: int, what: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(what)


def test_a_page_of_garbage_costs_what_was_on_it(path: Path) -> None:
    pages = pages_of(path, "trials")
    for page in (pages[3], pages[5], pages[6]):
        overwrite(path, page * PAGE, b"\xa5" * PAGE)
    found = mended(path)
    assert found < ALL
    assert len(found) >= COUNT * (len(pages) - 5) / len(pages)
    assert {min(ALL), max(ALL)} <= found


def test_an_index_of_garbage_costs_nothing(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute(
            "select rootpage from sqlite_master where name like 'sqlite_autoindex_trials%'"
        ).fetchone()
    overwrite(path, (root - 1) * PAGE, b"\xa5" * PAGE)
    assert mended(path) == ALL


def test_a_file_that_ends_early(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size * 2 // 3)
    found = mended(path)
    assert found < ALL


@pytest.mark.parametrize(
    "data",
    [b"not a database at all\n" * 50, b"\0" * 8192, b"S"],
    ids=["text", "zeros", "byte"],
)
def test_a_file_that_is_no_database(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert mended(path) == set()


def test_a_file_of_something_else_is_refused_and_left_alone(path: Path) -> None:
    other = path.with_name("model.onnx")
    other.write_bytes(b"something of the user's")
    other.chmod(0o600)
    with pytest.raises(InputError, match="not a database of tuning records"):
        Records(other)
    assert other.read_bytes() == b"something of the user's"


def test_a_warning_names_a_file_that_is_no_database_once(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")
    with pytest.warns(TilewrightWarning, match="No tuning records are used") as said:
        assert current(path) is NOTHING
    (text,) = (str(warning.message) for warning in said)
    assert text.count(str(path)) == 1 and text.startswith(f"{path}: the tuning records")


def test_an_empty_file_is_a_new_database(path: Path) -> None:
    path.write_bytes(b"")
    with Records(path) as records:
        assert records.records() == []


def test_a_changed_byte_inside_of_a_row_is_found(path: Path) -> None:
    """SQLite sees nothing wrong with it: the sum of the row does."""
    data = path.read_bytes()
    at = data.index(b"[0.001, 0.0015, 0.0005]", pages_of(path, "trials")[2] * PAGE)
    overwrite(path, at + 5, b"9")
    with Records(path) as records, pytest.warns(TilewrightWarning, match="1 row of"):
        assert len(records.records()) == COUNT - 1


def test_text_that_is_no_text_is_found(path: Path) -> None:
    at = path.read_bytes().index(b"evolutionary", pages_of(path, "trials")[2] * PAGE)
    overwrite(path, at, b"\xff\xfe")
    with Records(path) as records, pytest.warns(TilewrightWarning, match="1 row of"):
        assert len(records.records()) == COUNT - 1


def test_a_changed_name_of_a_column_is_found_and_costs_nothing(path: Path) -> None:
    overwrite(path, path.read_bytes().index(b"noise real"), b"voice")
    assert mended(path) == ALL


def test_a_changed_key_is_found(path: Path) -> None:
    data = path.read_bytes()
    overwrite(path, data.index(b'"threads":2') + 10, b"4")
    with (
        Records(path) as records,
        pytest.warns(TilewrightWarning, match=f"{COUNT} rows"),
    ):
        assert records.records() == []


def unclosed(path: Path, count: int) -> None:
    """More trials, in the journal only: as after a kill."""
    other = path.with_name("living")
    shutil.copy(path, other)
    with Records(other) as records:
        for n in range(COUNT, COUNT + count):
            records.merge([record(n)])
        shutil.copy(other, path)
        shutil.copy(f"{other}-wal", f"{path}-wal")


def test_a_journal_is_read(path: Path) -> None:
    unclosed(path, 10)
    with Records(path) as records:
        assert len(records.records()) == COUNT + 10


def test_a_damaged_journal_is_said(path: Path) -> None:
    unclosed(path, 10)
    wal = Path(f"{path}-wal")
    overwrite(wal, wal.stat().st_size * 6 // 10, b"\xa5" * 20)
    with pytest.warns(
        TilewrightWarning, match=r"journal was damaged.* the last \d+ writes"
    ):
        records = Records(path)
    with records:
        assert COUNT <= len(records.records()) < COUNT + 10


def test_a_journal_that_ends_within_a_write_is_as_after_a_loss_of_power(
    path: Path,
) -> None:
    unclosed(path, 10)
    wal = Path(f"{path}-wal")
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - 100)
    with Records(path) as records:
        assert len(records.records()) == COUNT + 9


def test_trials_outlive_what_they_belong_to(path: Path) -> None:
    """Choices and runs that can be read are saved as well."""
    with Records(path) as records:
        records.merge(ROWS)
    page = pages_of(path, "trials")[-1]
    overwrite(path, page * PAGE, b"\xa5" * PAGE)
    mended(path)
    with Records(path) as records:
        assert len(records.choices()) == 2
        assert {r.run for r in records.records()} == {RUN}


# ------------------------------------------------------------------- while it is being used


def test_a_file_that_is_taken_away_while_it_is_used(path: Path) -> None:
    with Records(path) as records:
        run = records.begin("m")
        records.add(run, KEY, "k", trial(1000))
        path.rename(path.with_name("elsewhere"))
        Path(f"{path}-wal").unlink()
        Path(f"{path}-shm").unlink()
        records.add(run, KEY, "k", trial(1001))
        records.add(run, KEY, "k", trial(1002))
        assert records.trials(KEY) == [trial(1001), trial(1002)]
    with Records(path) as records:
        assert records.trials(KEY) == [trial(1001), trial(1002)]


def test_a_folder_that_is_gone_for_a_while_loses_no_trial(path: Path) -> None:
    with Records(path) as records:
        run = records.begin("m")
        away = path.parent.with_name("away")
        path.parent.rename(away)
        path.parent.write_text("no folder")
        with pytest.warns(TilewrightWarning, match="kept in memory"):
            records.add(run, KEY, "k", trial(1001))
        records.add(run, KEY, "k", trial(1002))  # nothing new is said
        path.parent.unlink()
        away.rename(path.parent)
        records.add(run, KEY, "k", trial(1003))
        assert records.trials(KEY)[COUNT:] == [trial(n) for n in (1001, 1002, 1003)]


def test_damage_while_it_is_used_is_mended_by_whoever_meets_it(path: Path) -> None:
    """One process writes on after another has moved the damaged file aside."""
    with Records(path) as tuner:
        run = tuner.begin("m")
        tuner.add(run, KEY, "k", trial(1000))
        for page in pages_of(path, "trials")[2:4]:
            overwrite(path, page * PAGE, b"\xa5" * PAGE)
        with pytest.warns(TilewrightWarning, match="were damaged"):
            other = Records(path)
        tuner.add(run, KEY, "k", trial(1001))
        found = other.trials(KEY)
        other.close()
        assert found[-2:] == [trial(1000), trial(1001)]
        assert len(found) > COUNT // 2


def test_damage_that_a_writer_meets_is_mended_and_nothing_new_is_lost(
    path: Path,
) -> None:
    records = Records(path)
    run = records.begin("m")
    with Records(path) as other:
        other.add(run, KEY, "k", trial(999))
    size = path.stat().st_size
    overwrite(path, PAGE, b"\xa5" * (size - PAGE))
    with pytest.warns(TilewrightWarning, match="were damaged"):
        for n in range(1000, 1010):
            records.add(run, KEY, "k", trial(n))
    found = records.trials(KEY)
    records.close()
    assert found[-10:] == [trial(n) for n in range(1000, 1010)]


# --------------------------------------------------------------------------------- versions


def older(path: Path, version: int) -> None:
    """A database as a compiler of an older version made it."""
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for step in schema.STEPS[:version]:
            db.executescript(step)
        db.execute(f"pragma application_id = {schema.APPLICATION}")
        db.execute(f"pragma user_version = {version}")
        r = record(0)
        db.execute(columns.ADD_RUN, (*columns.of_run(RUN), "", 1.0))
        db.execute(columns.ADD_TASK, columns.of_task(r.key, r.task))
        db.execute(columns.ADD_TRIAL, columns.of_record(r))
    path.chmod(0o600)


@pytest.mark.parametrize("version", range(1, schema.VERSION))
def test_an_older_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    path = tmp_path / "data" / "records.sqlite"
    older(path, version)
    with Records(path, write=False) as records:  # a copy of it, in memory
        assert records.records() == [record(0)]
    with closing(sqlite3.connect(path)) as db:
        assert schema.version(db) == version
    with Records(path) as records:
        assert records.records() == [record(0)]
        records.merge(ROWS)
        assert len(records.records()) == len(ROWS) - 2
    with closing(sqlite3.connect(path)) as db:
        assert schema.version(db) == schema.VERSION


def test_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"pragma user_version = {schema.VERSION + 1}")
    before = path.read_bytes()
    for write in (True, False):
        with pytest.raises(
            InputError, match=rf"version {schema.VERSION + 1}.*newer"
        ) as caught:
            Records(path, write=write)
        assert caught.value.where == str(path)
    assert path.read_bytes() == before


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    path = folder / "photos.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table photos (name)")
    path.chmod(0o600)
    before = path.read_bytes()
    for write in (True, False):
        with pytest.raises(InputError, match="another kind of database"):
            Records(path, write=write)
    assert path.read_bytes() == before


def test_a_folder_is_no_file_of_records(tmp_path: Path) -> None:
    for write in (True, False):
        with pytest.raises(InputError, match=r": it is not a file; give a file"):
            Records(tmp_path, write=write)


def test_a_folder_that_takes_no_files_is_refused_without_waiting_for_its_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /proc, where no file can be made: a lock is tried again for a minute."""

    def refuses(place: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(place))

    def waits(place: Path) -> None:
        raise AssertionError("a lock is waited for")

    monkeypatch.setattr(opening, "check_writable", refuses)
    monkeypatch.setattr(opening, "alone", waits)
    with pytest.raises(
        InputError, match=r"no file can be made in the folder .*: No such file"
    ):
        Records(path)


def test_an_upgrade_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data" / "records.sqlite"
    older(path, 1)
    before = path.read_bytes()
    broken = (*schema.STEPS[:1], "create table more (x); create nonsense")
    monkeypatch.setattr(schema, "STEPS", broken)
    with pytest.raises(InputError, match="nonsense"):
        Records(path)
    assert path.read_bytes() == before


def test_an_upgrade_that_sqlite_ended_itself_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: no transaction is left, and the first error is the one that matters."""
    monkeypatch.setattr(schema, "STEPS", ("rollback; create nonsense",))
    with pytest.raises(InputError, match="nonsense"):
        Records(tmp_path / "records.sqlite")


def test_failed_trials_are_trials(path: Path) -> None:
    with Records(path) as records:
        run = records.begin("m")
        records.add(run, KEY, "k", failed(7))
        assert failed(7) in records.trials(KEY)
