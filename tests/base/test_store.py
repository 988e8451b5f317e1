"""The store: whole entries or none, under several processes, damage, kills and a full disk."""

import os
import subprocess
import sys
import time

import pytest

from tests.waiting import PATIENCE, until
from tilewright.base import events, store
from tilewright.base.errors import TilewrightWarning
from tilewright.base.store import FileStore, default_store


@pytest.fixture
def disk(tmp_path):
    return FileStore(tmp_path / "store", 1 << 20)


def test_put_and_get(disk):
    assert disk.get("key") is None
    for data in (b"", b"one", b"two" * 1000):
        disk.put("key", data)
        assert disk.get("key") == data
    assert [entry.key for entry in disk.entries()] == ["key"]
    assert FileStore(disk.root, 1 << 20).get("key") == b"two" * 1000
    stats = disk.stats()
    assert (stats.entries, stats.hits, stats.misses, stats.writable) == (1, 3, 1, True)
    assert stats.size == 3000 + store._HEADER


@pytest.mark.parametrize(
    "key", ["", "ab", "../../etc/passwd", "a/b", ".hidden", "ab\n", "x" * 201]
)
def test_a_key_cannot_leave_the_folder(disk, key):
    with pytest.raises(ValueError, match="is not a key"):
        disk.get(key)
    with pytest.raises(ValueError, match="is not a key"):
        disk.put(key, b"")


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "append", "other"])
def test_a_damaged_entry_is_deleted_reported_and_made_again(disk, damage):
    for key in ("good", "bad1", "bad2"):
        disk.put(key, key.encode() * 100)
    blobs = {
        "flip": lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]),
        "truncate": lambda blob: blob[:-1],
        "empty": lambda blob: b"",
        "append": lambda blob: blob + b"x",
        "other": lambda blob: disk._path("good").read_bytes(),
    }
    for key in ("bad1", "bad2"):
        path = disk._path(key)
        path.write_bytes(blobs[damage](path.read_bytes()))
    with (
        events.record() as seen,
        pytest.warns(TilewrightWarning, match="damaged") as warned,
    ):
        assert disk.get("bad1") is None
        assert disk.get("bad2") is None
    assert len(warned) == 1
    assert [event.fields["key"] for event in seen] == ["bad1", "bad2"]
    assert {entry.key for entry in disk.entries()} == {"good"}
    stats = disk.stats()
    assert (stats.corrupted, stats.misses, stats.hits) == (2, 2, 0)
    disk.put("bad1", b"again")
    assert disk.get("bad1") == b"again"


def test_the_least_recently_used_go_first(tmp_path):
    disk = FileStore(tmp_path, 10 * (1000 + store._HEADER))
    for i in range(10):
        disk.put(f"key{i}", bytes(1000))
        os.utime(disk._path(f"key{i}"), (1000 + i, 1000 + i))
    assert disk.get("key0") is not None
    with events.record() as seen:
        disk.put("new", bytes(1000))
    kept = [entry.key for entry in disk.entries()]
    assert {"new", "key0", "key9"} <= set(kept)
    assert "key1" not in kept
    assert kept[-1] == "key3"
    assert disk.stats().size <= disk.max_bytes
    assert seen[0].kind == "store-evicted"
    assert disk.stats().evicted == seen[0].fields["entries"] == 2


def test_what_was_put_just_now_is_not_the_first_to_go(tmp_path):
    """Though others were used a moment before: files have the time of a slower clock."""
    disk = FileStore(tmp_path, 10 * (1000 + store._HEADER))

    def behind(path):
        path.write_bytes(bytes(1000))
        os.utime(path, ns=(time.time_ns() - 10**9,) * 2)

    for n in range(20):
        for entry in disk.entries():
            disk.find(entry.key)
        assert disk.adopt(f"key{n}", 1000, behind) is not None
        assert disk.find(f"key{n}") is not None


def test_what_another_process_deletes_while_this_one_evicts(tmp_path, monkeypatch):
    """It is gone, as intended, and the others are still evicted."""
    disk = FileStore(tmp_path, 10 * (1000 + store._HEADER))
    for i in range(10):
        disk.put(f"key{i}", bytes(1000))
        os.utime(disk._path(f"key{i}"), (1000 + i, 1000 + i))
    scan, scans = FileStore._scan, []

    def meanwhile(self):
        found = list(scan(self))
        scans.append(found)
        if (
            len(scans) == 2
        ):  # the first finds that there is too much, the second what to delete
            disk._path("key0").unlink()
        return iter(found)

    monkeypatch.setattr(FileStore, "_scan", meanwhile)
    with events.record() as seen:
        disk.put("new", bytes(1000))
    assert [event.fields["entries"] for event in seen] == [2]
    monkeypatch.undo()
    assert {entry.key for entry in disk.entries()} == {
        "new",
        *(f"key{i}" for i in range(2, 10)),
    }


def test_what_other_processes_wrote_counts_too(tmp_path):
    one, two = FileStore(tmp_path, 100_000), FileStore(tmp_path, 100_000)
    for i in range(200):
        (one, two)[i % 2].put(f"key{i}", bytes(1000))
    assert one.stats().size <= 110_000


def test_data_above_the_cap_is_not_kept(tmp_path):
    disk = FileStore(tmp_path, 1000)
    disk.put("key", bytes(1001))
    assert disk.entries() == []


def test_an_unwritable_folder_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    disk = FileStore(tmp_path / "file" / "store", 1000)
    with pytest.warns(
        TilewrightWarning, match=r"writing failed.*TILEWRIGHT_CACHE_DIR"
    ) as seen:
        disk.put("key", b"1")
        disk.put("key", b"2")
        assert disk.get("key") is None
    assert len(seen) == 1
    assert not disk.stats().writable


def test_a_read_only_store_still_serves(disk, monkeypatch):
    disk.put("key", b"data")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store.os, "utime", refuse)
    monkeypatch.setattr(store, "write_whole", refuse)
    with pytest.warns(TilewrightWarning):
        disk.put("new", b"")
    assert disk.get("key") == b"data"


def test_what_another_process_evicts_meanwhile_is_absent(disk):
    """Between finding and reading it, and between writing and counting it, without a warning."""
    path = disk.adopt("key", 4, lambda path: path.write_bytes(b"data"))
    assert disk.find("key") == path
    path.unlink()
    disk.discard("key")
    assert (disk.stats().hits, disk.stats().misses, disk.stats().corrupted) == (0, 1, 0)
    assert disk.adopt("key", 4, lambda path: None) is None
    assert disk.stats().writable


def test_clear(disk):
    for i in range(5):
        disk.put(f"key{i}", b"x")
    assert disk.clear() == 5
    assert disk.entries() == []
    disk.put("key", b"x")
    assert disk.get("key") == b"x"


def test_abandoned_writes_are_no_entries_and_go_in_time(disk):
    disk.put("key", b"x")
    folder = disk._path("key").parent
    old, young = folder / ".writing-old", folder / ".writing-young"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    assert [entry.key for entry in disk.entries()] == ["key"]
    disk.clear()
    assert not old.exists()
    assert young.exists()


WORKER = """
import sys, warnings
from pathlib import Path
from tilewright.base.store import FileStore

warnings.simplefilter("error")
seed, rounds = int(sys.argv[2]), int(sys.argv[3])
disk = FileStore(Path(sys.argv[1]), 60_000)
for i in range(rounds):
    key = f"key{(i * 7 + seed) % 40}"
    data = disk.get(key)
    assert data in (None, key.encode() * 500)
    disk.put(key, key.encode() * 500)
"""


def _start_worker(root, seed: int, rounds: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(root), str(seed), str(rounds)]
    )


def test_many_processes_share_a_store(tmp_path):
    workers = [_start_worker(tmp_path, seed, 300) for seed in range(4)]
    assert [worker.wait(PATIENCE) for worker in workers] == [0] * 4
    disk = FileStore(tmp_path, 60_000)
    # Each may put an entry, and a twentieth of the cap before that, which the others do not see.
    assert disk.stats().size <= 60_000 + 4 * (3_000 + 3_000)
    for entry in disk.entries():
        assert disk.get(entry.key) == entry.key.encode() * 500


def test_a_killed_writer_leaves_whole_entries(tmp_path):
    worker = _start_worker(tmp_path, 0, 10_000_000)
    until(lambda: len(FileStore(tmp_path, 60_000).entries()) >= 10)
    worker.kill()
    worker.wait()
    assert _start_worker(tmp_path, 1, 100).wait(PATIENCE) == 0
    assert FileStore(tmp_path, 60_000).stats().entries > 0


def test_the_default_store_follows_the_flags(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_CACHE_SIZE", "1M")
    first = default_store()
    assert first is default_store()
    assert (first.root, first.max_bytes) == (tmp_path, 1 << 20)
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_store().root.name == "tilewright"
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert default_store() is None
