"""The database: what is acknowledged is there, whoever else writes and whoever is killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tune.records.made import KEY, ROWS, RUN, candidate, failed, record, trial
from tilewright.base.errors import InputError, TilewrightWarning
from tilewright.tune.records import opening, owner, published
from tilewright.tune.records.columns import RecordFilter
from tilewright.tune.records.current import current
from tilewright.tune.records.database import Records
from tilewright.tune.records.jsonl import read
from tilewright.tune.records.published import NOTHING
from tilewright.tune.records.rows import MARGIN, Choice, Features, Record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "records.sqlite"


def test_everything_of_a_row_is_kept(path: Path) -> None:
    with Records(path) as records:
        assert records.merge(ROWS) == len(ROWS)
        assert records.merge(ROWS) == 0
    for write in (True, False):
        with Records(path, write=write) as records:
            assert [*records.records(), *records.choices()] == ROWS


def test_the_tuners_side(path: Path) -> None:
    with Records(path) as records:
        run = records.begin("m.onnx", "annealing", "0.1")
        records.add(run, KEY.text, "matmul", trial(0), Features("fast", 1, b"abc"))
        records.add(run, KEY, "matmul", failed(1))
        records.end(run)
    with Records(path) as records:
        assert records.trials(KEY) == [trial(0), failed(1)]
        first, second = records.records()
        assert (first.features, second.features) == (Features("fast", 1, b"abc"), None)
        assert first.run == run
        assert (first.run.model, first.run.settings) == ("m.onnx", "annealing")
        assert run.started <= first.time <= second.time


def test_in_one_run_a_candidate_has_one_trial(path: Path) -> None:
    """The first counts; another run measures anew, and so does another task."""
    with Records(path) as records:
        records.add(RUN, KEY, "k", trial(0, 1e-3))
        records.add(RUN, KEY, "k", trial(0, 5e-3))
        assert records.trials(KEY) == [trial(0, 1e-3)]
        records.add(replace(RUN, id="run2"), KEY, "k", trial(0, 5e-3))
        assert records.trials(KEY) == [trial(0, 1e-3), trial(0, 5e-3)]
        other = replace(KEY, threads=1)
        records.add(RUN, other, "k", trial(0, 7e-3))
        assert records.trials(other) == [trial(0, 7e-3)]


def test_what_is_asked_for(path: Path) -> None:
    other = replace(KEY, processor="Other 1", operator="fedcba", family="conv(cc pw)")
    with Records(path) as records:
        records.merge([record(0), record(1, replace(RUN, id="2", model="Net.onnx"))])
        records.merge([Record(other, "conv", RUN, 3000.0, trial(2))])

        def found(**wanted: object) -> list[float]:
            return [r.time for r in records.records(RecordFilter(**wanted))]  # type: ignore[arg-type]

        assert found() == [2000.0, 2001.0, 3000.0]
        assert found(model="net") == [2001.0]
        assert found(operator="CONV") == found(operator="fedc") == [3000.0]
        assert (
            found(operator="matmul+relu")
            == found(operator="matmul(")
            == [2000.0, 2001.0]
        )
        assert found(machine="brand") == [2000.0, 2001.0]
        assert found(machine="other 1", operator="matmul") == []
        assert found(before=2001.0) == [2000.0]
        assert found(digest=other.digest) == [3000.0]
        assert found(model="%") == []


# ---------------------------------------------------------------------------------- choices


def test_a_choice_is_used_where_it_pays(path: Path) -> None:
    with Records(path) as records:
        run = records.begin("m")
        assert not records.choose(run, KEY, "k", candidate(0), 1.0, MARGIN - 0.001)
        assert published.read(path) == published.NOTHING
        assert records.choose(run, KEY, "k", candidate(1), 1.0, 1.5)
        assert not records.choose(run, KEY, "k", candidate(2), 1.0, 1.4)
        assert _used(path) == {KEY.digest: candidate(1).key}
        assert records.choose(run, KEY, "k", candidate(3), 1.0, 1.6)
        assert _used(path) == {KEY.digest: candidate(3).key}
        records.withdraw(run, KEY, "k")
        assert _used(path) == {}
        assert records.choose(run, KEY, "k", candidate(2), 1.0, 1.1)
        assert _used(path) == {KEY.digest: candidate(2).key}
        assert len(records.choices()) == 6


def test_choices_of_another_version_of_the_schedules_are_kept_and_not_used(
    path: Path,
) -> None:
    with Records(path) as records:
        old = replace(KEY, schedules=0)
        assert not records.choose(records.begin("m"), old, "k", candidate(0), 1.0, 2.0)
        assert len(records.choices()) == 1
    assert _used(path) == {}


def test_the_file_for_compile_is_made_again(path: Path) -> None:
    with Records(path) as records:
        records.choose(records.begin("m"), KEY, "k", candidate(0), 1.0, 2.0)
    there = published.place(path)
    for damage in (b"", there.read_bytes()[:-5], b"\xff" * 100):
        there.write_bytes(damage)
        assert published.read(path) is None
        Records(path).close()
        assert _used(path) == {KEY.digest: candidate(0).key}


def _used(path: Path) -> dict[str, str]:
    found = published.read(path)
    assert found is not None
    return {key: c.candidate for key, c in found.choices.items()}


# ------------------------------------------------------------------------------------- runs


def test_a_link_means_the_file_that_it_leads_to(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    with Records(link) as records:
        records.choose(RUN, KEY, "k", candidate(0), 1.0, 2.0)
        assert records.path == path
    assert current(link) == current(path) != NOTHING
    assert [f.name for f in tmp_path.iterdir() if "link" in f.name] == [link.name]


def test_a_folder_of_others_behind_a_link_is_not_opened(
    path: Path, tmp_path: Path
) -> None:
    with Records(path) as records:
        records.merge(ROWS)
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    (own / "link.sqlite").symlink_to(path)
    path.parent.chmod(0o777)
    with pytest.raises(InputError, match="others could have written"):
        Records(own / "link.sqlite")
    with pytest.warns(TilewrightWarning, match="others could have written"):
        assert current(own / "link.sqlite") == NOTHING


def test_a_run_that_was_killed_is_resumed_by_one_process(path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from tilewright.tune.records.database import Records;"
        f"r = Records(Path({str(path)!r})); r.begin('m.onnx', 's');"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with Records(path) as records:
        assert records.resume("m.onnx", "s") is None
        subprocess.run([sys.executable, "-c", code], check=False)
        assert records.resume("other.onnx", "s") is None
        assert records.resume("m.onnx", "other") is None
        run = records.resume("m.onnx", "s")
        assert run is not None and run.model == "m.onnx"
        # It is this process's now, which is alive.
        assert records.resume("m.onnx", "s") is None
        own = records.begin("n.onnx")
        assert records.resume("n.onnx") is None
        records.end(own)


def test_a_run_that_ended_is_not_resumed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Records(path) as records:
        ended, left = records.begin("m"), records.begin("m")
        records.end(ended)
        monkeypatch.setattr(
            "tilewright.tune.records.database.alive", lambda process: False
        )
        assert records.resume("m") == left
        records.end(left)
        assert records.resume("m") is None


def test_a_process_is_known_by_its_start_too() -> None:
    mine = owner.myself()
    assert owner.alive(mine)
    boot, number, started = mine.split()
    assert not owner.alive(f"{boot} {number} {int(started) + 1}")
    assert not owner.alive(f"other {number} {started}")
    assert not owner.alive("")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = owner._process(child.pid)
    assert owner.alive(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not owner.alive(process)  # it waits only to be buried
    child.wait()
    assert not owner.alive(process)


# -------------------------------------------------------------------------- several at once

WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.tune.records.made import KEY, trial
from tilewright.tune.records.database import Records
path, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with Records(path) as records:
    run = records.begin("m")
    input()
    for n in range(first, first + count):
        records.add(run, KEY, "k", trial(n))
        print(n, flush=True)
"""


def writer(path: Path, first: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(first), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_write_at_the_same_time(path: Path) -> None:
    writers = [writer(path, first, 200) for first in (0, 100)]
    for w in writers:
        assert w.stdin is not None
        w.stdin.write("\n")
        w.stdin.flush()
    for w in writers:
        w.communicate()
        assert w.returncode == 0
    with Records(path) as records:
        found = records.records()
    assert len(found) == 400
    by_run: dict[str, list[str]] = {}
    for r in found:
        by_run.setdefault(r.run.id, []).append(r.trial.candidate.key)
    expected = [[trial(n).candidate.key for n in range(f, f + 200)] for f in (0, 100)]
    assert sorted(by_run.values()) == sorted(expected)


@pytest.mark.parametrize("kills", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_loses_nothing_acknowledged(
    path: Path, kills: int
) -> None:
    chance = random.Random(15)
    acknowledged: set[int] = set()
    for attempt in range(kills):
        first = attempt * 1000
        w = writer(path, first, 1000)
        assert w.stdin is not None and w.stdout is not None
        w.stdin.write("\n")
        w.stdin.flush()
        for _ in range(chance.randrange(1, 60)):
            acknowledged.add(int(w.stdout.readline()))
        w.send_signal(signal.SIGKILL)
        acknowledged |= {int(text) for text in w.stdout.read().split()}
        w.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is damaged
        with Records(path) as records:
            found = {
                dict(t.candidate.values)["matmul.tile"][0] for t in records.trials(KEY)
            }
    assert found >= acknowledged
    assert len(found) <= len(acknowledged) + kills


# ---------------------------------------------------------------------------------- trouble


def test_the_disk_is_waited_for_with_choices_alone(path: Path) -> None:
    """And with trials if there is no write-ahead journal, which survives without it."""

    def waited(records: Records) -> bool:
        (level,) = records._db.execute("pragma synchronous").fetchone()
        return bool(level == 2)

    with Records(path) as records:
        assert not records.records()
        records.add(RUN, KEY, "t", trial(0))
        assert not waited(records)
        records.choose(RUN, KEY, "t", candidate(0), 1.0, 2.0)
        assert waited(records)
        records.add(RUN, KEY, "t", trial(1))
        assert not waited(records)
        records.end(RUN)
        assert waited(records)
        records._db.execute("pragma journal_mode = delete")
        records.add(RUN, KEY, "t", trial(2))
        assert waited(records)


def test_a_full_disk_loses_no_trial(path: Path) -> None:
    """What could not be written waits, and is written with the next one that can be."""
    with Records(path) as records:
        run = records.begin("m")
        pages = records._db.execute("pragma page_count").fetchone()[0]
        records._db.execute(f"pragma max_page_count = {pages}")
        with pytest.warns(TilewrightWarning, match="kept in memory") as said:
            for n in range(100):
                records.add(run, KEY, "k", trial(n))
        assert len(said) == 1
        assert len(records.trials(KEY)) < 100
        records._db.execute("pragma max_page_count = 1000000")
        records.add(run, KEY, "k", trial(100))
        assert records.trials(KEY) == [trial(n) for n in range(101)]


def test_a_disk_that_stays_full_leaves_a_file_elsewhere(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    records = Records(path)
    run = records.begin("m")
    pages = records._db.execute("pragma page_count").fetchone()[0]
    records._db.execute(f"pragma max_page_count = {pages}")
    with pytest.warns(TilewrightWarning) as said:
        for n in range(100):
            records.add(run, KEY, "k", trial(n))
        there = {t.candidate.key for t in records.trials(KEY)}
        records.close()
    (file,) = tmp_path.glob("*.jsonl")
    assert str(file) in str(said[-1].message)
    assert file.stat().st_mode & 0o077 == 0
    rows = [
        row for row in read(file.read_bytes().splitlines()) if isinstance(row, Record)
    ]
    assert there | {r.trial.candidate.key for r in rows} == {
        trial(n).candidate.key for n in range(100)
    }


def test_nowhere_to_write_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(path / "missing"))
    records = Records(path)
    records._db.execute("pragma query_only = on")
    with pytest.warns(TilewrightWarning) as said:
        records.add(RUN, KEY, "k", trial(0))
        records.close()
    assert "1 trial could not be written to " in str(said[-1].message)


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "records.sqlite", tmp_path, Path("/dev/null")):
        with pytest.raises(InputError) as caught:
            Records(place)
        assert caught.value.where == str(place)
        assert "Errno" not in str(caught.value)
        assert str(caught.value).count(str(place)) == 1


def test_a_file_of_others_is_not_opened(path: Path) -> None:
    Records(path).close()
    path.chmod(0o666)
    for write in (True, False):
        with pytest.raises(InputError, match=r"can be written by others.*import"):
            Records(path, write=write)
    path.chmod(0o600)
    path.parent.chmod(0o777)
    with pytest.raises(InputError, match="can be written by others"):
        Records(path)
    path.parent.chmod(0o700)


def test_new_files_are_the_users_own(path: Path) -> None:
    with Records(path) as records:
        records.choose(records.begin("m"), KEY, "k", candidate(0), 1.0, 2.0)
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o077 == 0, file
    assert path.parent.stat().st_mode & 0o077 == 0


def test_a_read_only_folder_can_be_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Records(path) as records:
        records.merge(ROWS)
    usual = opening._connected

    def connected(where: Path, mode: str, more: str = "") -> sqlite3.Connection:
        if not more:
            raise sqlite3.OperationalError("unable to open database file")
        return usual(where, mode, more)

    monkeypatch.setattr(opening, "_connected", connected)
    with Records(path, write=False) as records:
        assert [*records.records(), *records.choices()] == ROWS
    Path(f"{path}-wal").write_bytes(b"something")
    with pytest.raises(InputError, match="unable to open"):
        Records(path, write=False)


def test_reading_what_is_not_there(path: Path) -> None:
    with pytest.raises(InputError, match="there are no tuning records"):
        Records(path, write=False)
    assert not path.parent.exists()


def test_a_choice_that_cannot_be_published_is_a_warning(path: Path) -> None:
    with Records(path) as records:
        published.place(path).unlink()
        published.place(path).mkdir()
        with pytest.warns(TilewrightWarning, match="compile cannot use"):
            records.choose(RUN, KEY, "k", candidate(0), 1.0, 2.0)
        assert isinstance(records.choices()[0], Choice)
