"""Digests of files: of all their bytes, and remembered only while nothing can have changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tilewright.base import events
from tilewright.base.errors import TilewrightWarning
from tilewright.base.store import FileStore
from tilewright.driver import file_digest
from tilewright.driver.file_digest import FileState, of_file, of_files, read_all
from tilewright.runtime import digest
from tilewright.runtime.digest import CHUNK, of_bytes


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store", 1 << 20)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"contents")
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files read so far; every file counts as settled."""
    seen: list[Path] = []
    read = file_digest._read

    def noting(path: Path, size: int) -> str:
        seen.append(path)
        return read(path, size)

    monkeypatch.setattr(file_digest, "_read", noting)
    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    return seen


def entry(store: FileStore) -> Path:
    (found,) = store.entries()
    return found.path


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7])
def test_a_file_has_the_digest_of_its_bytes(
    tmp_path: Path, store: FileStore, size: int
) -> None:
    data = os.urandom(size)
    path = tmp_path / "file"
    path.write_bytes(data)
    assert of_file(path, store) == of_bytes(data)
    assert of_bytes(data) != of_bytes(data + b"\0")
    if size:
        assert of_bytes(data) != of_bytes(bytes([data[0] ^ 1]) + data[1:])


def test_part_of_a_file_has_the_digest_of_those_bytes(file: Path) -> None:
    data = os.urandom(3 * CHUNK)
    file.write_bytes(data)
    with file.open("rb") as opened:
        number = opened.fileno()
        for start, size in (
            (0, 5),
            (7, CHUNK),
            (CHUNK - 1, CHUNK + 2),
            (CHUNK + 9, 2 * CHUNK),
        ):
            assert digest.of_file(number, start, size) == of_bytes(
                data[start : start + size]
            )


def test_the_order_of_chunks_counts() -> None:
    a, b = bytes(CHUNK), b"\1" * CHUNK
    assert of_bytes(a + b) != of_bytes(b + a)


def test_a_file_is_read_once(file: Path, store: FileStore, reads: list[Path]) -> None:
    first = of_file(file, store)
    link = file.with_name("link")
    link.symlink_to(file)
    assert (
        of_file(file, store) == of_file(link, FileStore(store.root, 1 << 20)) == first
    )
    assert len(reads) == 1


def write_again(path: Path) -> None:
    path.write_bytes(b"CONTENTS")


def write_with_old_times(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"CONTENTS")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_with_old_times(path: Path) -> None:
    before, other = path.stat(), path.with_name("other")
    other.write_bytes(b"CONTENTS")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    "change", [write_again, write_with_old_times, replace_with_old_times]
)
def test_a_changed_file_is_read_again(
    file: Path, store: FileStore, reads: list[Path], change: object
) -> None:
    of_file(file, store)
    assert callable(change)
    change(file)
    assert of_file(file, store) == of_bytes(b"CONTENTS")
    assert len(reads) == 2


def test_a_file_that_was_just_written_is_not_remembered(
    file: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digest, "SETTLED", 3600.0)  # however slow this machine is
    assert of_file(file, store) == of_bytes(b"contents")
    assert not store.entries()


def test_a_file_that_changes_meanwhile_is_not_remembered(
    file: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = file_digest._read

    def changing(path: Path, size: int) -> str:
        found = read(path, size)
        path.write_bytes(b"CONTENTS")
        return found

    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    monkeypatch.setattr(file_digest, "_read", changing)
    of_file(file, store)
    assert not store.entries()


def test_nothing_is_remembered_where_a_start_of_the_system_has_no_name(
    file: Path, store: FileStore, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digest, "_boot", lambda: "")
    of_file(file, store)
    of_file(file, store)
    assert len(reads) == 2


def test_a_damaged_memory_is_said_and_read_again(
    file: Path, store: FileStore, reads: list[Path]
) -> None:
    first = of_file(file, store)
    path = entry(store)
    path.write_bytes(path.read_bytes()[:-3])
    with events.record() as log, pytest.warns(TilewrightWarning, match="damaged"):
        assert of_file(file, store) == first
    assert [e.kind for e in log] == ["store-corrupted"]
    assert len(reads) == 2
    assert of_file(file, store) == first
    assert len(reads) == 2


@pytest.mark.parametrize("text", ["", "7", "[]", "[[], 7]", "{}", '["x", "y", "z"]'])
def test_a_memory_of_another_form_counts_as_none(
    file: Path, store: FileStore, reads: list[Path], text: str
) -> None:
    first = of_file(file, store)
    store.put(entry(store).name, text.encode())
    assert of_file(file, store) == first
    assert len(reads) == 2


def test_a_memory_of_another_state_counts_as_none(
    file: Path, store: FileStore, reads: list[Path]
) -> None:
    first = of_file(file, store)
    name = entry(store).name
    state, _ = json.loads(store.get(name) or b"")
    store.put(name, json.dumps([[*state[:-1], state[-1] + 1], "wrong"]).encode())
    assert of_file(file, store) == first
    assert FileState.of(file).size == 8


@pytest.fixture
def all_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files were read together, each time; every file counts as settled."""
    seen: list[int] = []

    def noting(paths: Sequence[str]) -> str:
        seen.append(len(paths))
        return read_all(paths)

    monkeypatch.setattr(file_digest, "read_all", noting)
    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    return seen


def two(file: Path) -> list[str]:
    other = file.with_name("second")
    other.write_bytes(b" of both")
    return [str(file), str(other)]


def test_several_files_have_the_digest_of_what_they_hold(
    file: Path, store: FileStore
) -> None:
    expected = hashlib.sha256(b"contents of both").hexdigest()
    assert of_files(two(file), store, "some") == read_all(two(file)) == expected
    assert of_files(two(file)[::-1], store, "some") != expected


def test_several_files_are_read_once(
    file: Path, store: FileStore, all_reads: list[int]
) -> None:
    paths = two(file)
    first = of_files(paths, store, "some")
    assert of_files(paths, FileStore(store.root, 1 << 20), "some") == first
    assert all_reads == [2]
    assert of_files(paths[:1], store, "some") != first  # others are not these
    assert all_reads == [2, 1]


@pytest.mark.parametrize(
    "change", [write_again, write_with_old_times, replace_with_old_times]
)
def test_if_one_of_several_changes_all_are_read_again(
    file: Path, store: FileStore, all_reads: list[int], change: Callable[[Path], None]
) -> None:
    paths = two(file)
    of_files(paths, store, "some")
    change(file)
    assert (
        of_files(paths, store, "some")
        == hashlib.sha256(b"CONTENTS of both").hexdigest()
    )
    assert all_reads == [2, 2]


def test_several_files_of_which_one_was_just_written_are_not_remembered(
    file: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = two(file)
    old = file.stat().st_mtime - 7200
    os.utime(paths[1], (old, old))
    monkeypatch.setattr(file_digest, "SETTLED", 3600.0)
    of_files(paths, store, "some")
    assert not store.entries()


def test_several_files_of_which_one_changes_meanwhile_are_not_remembered(
    file: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(paths: Sequence[str]) -> str:
        found = read_all(paths)
        file.write_bytes(b"CONTENTS")
        return found

    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    monkeypatch.setattr(file_digest, "read_all", changing)
    of_files(two(file), store, "some")
    assert not store.entries()


def test_several_files_are_not_remembered_where_a_start_of_the_system_has_no_name(
    file: Path,
    store: FileStore,
    all_reads: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_digest, "_boot", lambda: "")
    paths = two(file)
    of_files(paths, store, "some")
    of_files(paths, store, "some")
    assert all_reads == [2, 2]


def test_several_files_are_read_again_after_a_restart_of_the_system(
    file: Path,
    store: FileStore,
    all_reads: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Device and inode numbers may be others then."""
    paths = two(file)
    of_files(paths, store, "some")
    monkeypatch.setattr(file_digest, "_boot", lambda: "another")
    of_files(paths, store, "some")
    assert all_reads == [2, 2]


@pytest.mark.parametrize("changed", [0, 1])
def test_the_last_change_of_several_files_counts(
    file: Path,
    store: FileStore,
    changed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = two(file)
    later = file.stat().st_mtime + 7200
    os.utime(paths[changed], (later, later))
    monkeypatch.setattr(file_digest, "SETTLED", -3600.0)
    of_files(paths, store, "some")
    assert not store.entries()


def test_a_memory_of_several_files_without_a_digest_counts_as_none(
    file: Path, store: FileStore, all_reads: list[int]
) -> None:
    paths = two(file)
    first = of_files(paths, store, "some")
    key = store.entries()[0].key
    state = (store.get(key) or b"").split()[0]
    for text in (b"", state, state + b" "):
        store.put(key, text)
        assert of_files(paths, store, "some") == first
    assert all_reads == [2, 2, 2, 2]
