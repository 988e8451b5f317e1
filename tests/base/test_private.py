"""Private folders: files that others could have written are not read, and the reason is given."""

import os
import stat
import warnings
from pathlib import Path

import pytest

from tests.limits import limited
from tilewright.base import private, store
from tilewright.base.errors import TilewrightWarning
from tilewright.base.store import FileStore

SOMEBODY = 4242


@pytest.fixture(autouse=True)
def others_in_the_group(monkeypatch):
    """Whatever group this user has."""
    monkeypatch.setattr(private, "_is_own_group", lambda group: False)


def result(mode, user=None):
    """What `stat` finds for a mode and an owner, by default ourselves."""
    return os.stat_result(
        (mode, 1, 1, 1, os.geteuid() if user is None else user, 1, 0, 0, 0, 0)
    )


@pytest.mark.parametrize(
    ("mode", "user", "why"),
    [
        (stat.S_IFREG | 0o600, None, ""),
        (stat.S_IFREG | 0o644, None, ""),
        (stat.S_IFREG | 0o644, 0, ""),
        (stat.S_IFREG | 0o620, None, "can be written by others"),
        (stat.S_IFREG | 0o602, None, "can be written by others"),
        (stat.S_IFREG | 0o600, SOMEBODY, f"belongs to the user {SOMEBODY}"),
        (stat.S_IFLNK | 0o600, None, "is not a file"),
        (stat.S_IFIFO | 0o600, None, "is not a file"),
        (stat.S_IFCHR | 0o600, None, "is not a file"),
        (stat.S_IFDIR | 0o700, None, "is not a file"),
    ],
)
def test_a_file_of_the_user_s_own(mode, user, why):
    assert private.objection_to(result(mode, user), "file") == why


class Folder:
    """A folder above, as `stat` would find it."""

    def __init__(self, mode, user=None, group=1):
        self.found = (
            stat.S_IFDIR | mode,
            1,
            1,
            1,
            os.geteuid() if user is None else user,
            group,
        )

    def stat(self):
        return os.stat_result((*self.found, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        (Folder(0o755), ""),
        (Folder(0o755, 0), ""),
        (Folder(0o755, 65534), ""),  # outside of a container
        (Folder(0o1777, 0), ""),
        (Folder(0o777), "can be written by others"),
        (Folder(0o775, group=SOMEBODY), "can be written by others"),
        (Folder(0o755, SOMEBODY), f"belongs to the user {SOMEBODY}"),
        (Folder(0o1777, SOMEBODY), f"belongs to the user {SOMEBODY}"),
    ],
)
def test_a_folder_above_in_which_nobody_else_can_rename_ours(folder, why):
    assert private._objection_above(folder) == why


def test_a_group_in_which_the_user_is_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(
        private, "_is_own_group", lambda group: group in (7, os.getgid())
    )
    plant(tmp_path / "store")
    (tmp_path / "store").chmod(0o775)
    assert FileStore(tmp_path / "store", 1 << 20).get("key") == b"planted"
    assert private._objection_above(Folder(0o775, group=7)) == ""
    assert (
        private._objection_above(Folder(0o777, group=7)) == "can be written by others"
    )


def plant(root, key="key", data=b"planted"):
    """An entry whose checksum is right, as anybody can make it."""
    path = root / key[:2] / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(store._header(key, data) + data)
    return path


@pytest.mark.parametrize("mode", [0o777, 0o722, 0o775, 0o1777])
def test_a_folder_that_others_may_write_is_off_and_nothing_of_it_is_read(
    tmp_path, mode
):
    root = tmp_path / "store"
    path = plant(root)
    root.chmod(mode)
    disk = FileStore(root, 1 << 20)
    with pytest.warns(
        TilewrightWarning, match="cache is off.*can be written by others"
    ) as seen:
        assert disk.get("key") is None
        assert disk.find("key") is None
        disk.put("new", b"data")
        assert disk.adopt("other", 3, lambda path: path.write_bytes(b"abc")) is None
    assert len(seen) == 1 and "TILEWRIGHT_CACHE_DIR" in str(seen[0].message)
    assert list(root.rglob("*")) == [path.parent, path]
    assert not disk.stats().writable


def test_who_is_alone_in_a_group(monkeypatch):
    import grp
    import pwd
    from types import SimpleNamespace as Entry

    monkeypatch.undo()
    groups = {
        5: Entry(gr_name="me", gr_mem=[]),
        6: Entry(gr_name="me", gr_mem=["me", "you"]),
        7: Entry(gr_name="users", gr_mem=["me"]),
    }
    monkeypatch.setattr(pwd, "getpwuid", lambda user: Entry(pw_name="me"))
    monkeypatch.setattr(grp, "getgrgid", groups.__getitem__)
    private._is_own_group.cache_clear()
    assert [private._is_own_group(group) for group in (5, 6, 7, 8)] == [
        True,
        False,
        False,
        False,
    ]
    private._is_own_group.cache_clear()


def test_a_folder_below_one_that_others_may_write_is_off(tmp_path):
    above = tmp_path / "above"
    plant(above / "store")
    above.chmod(0o777)
    with pytest.warns(TilewrightWarning, match=f"{above} can be written by others"):
        assert FileStore(above / "store", 1 << 20).get("key") is None
    above.chmod(0o1777)
    assert FileStore(above / "store", 1 << 20).get("key") == b"planted"


def test_a_link_to_a_folder_is_judged_by_both_places(tmp_path):
    plant(tmp_path / "real" / "store")
    open_ = tmp_path / "open"
    open_.mkdir()
    (open_ / "link").symlink_to(tmp_path / "real" / "store")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "store")
    assert FileStore(tmp_path / "link", 1 << 20).get("key") == b"planted"
    open_.chmod(0o777)
    with pytest.warns(TilewrightWarning, match="cache is off"):
        assert FileStore(open_ / "link", 1 << 20).get("key") is None
    (tmp_path / "real").chmod(0o777)
    with pytest.warns(TilewrightWarning, match="cache is off"):
        assert FileStore(tmp_path / "link", 1 << 20).get("key") is None


def test_a_folder_that_is_replaced_is_judged_again(tmp_path):
    root = tmp_path / "store"
    disk = FileStore(root, 1 << 20)
    disk.put("key", b"ours")
    assert disk.get("key") == b"ours"
    root.rename(tmp_path / "away")
    plant(root)
    root.chmod(0o777)
    with pytest.warns(TilewrightWarning, match="cache is off"):
        assert disk.get("key") is None


def test_everything_is_closed_to_others_whatever_the_mask(tmp_path):
    mask = os.umask(0)
    try:
        disk = FileStore(tmp_path / "above" / "store", 1 << 20)
        disk.put("key", b"data")
    finally:
        os.umask(mask)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "above").rglob("*")}
    assert set(modes.values()) == {0o700, 0o600}
    assert all((mode == 0o700) == path.is_dir() for path, mode in modes.items())


def test_a_folder_that_others_may_read_is_closed(tmp_path):
    path = plant(tmp_path / "store")
    (tmp_path / "store").chmod(0o755)
    assert FileStore(tmp_path / "store", 1 << 20).get("key") == b"planted"
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


# ------------------------------------------------------------------- files that are no entries


@pytest.fixture
def disk(tmp_path):
    return FileStore(tmp_path / "store", 1 << 20)


def _link_to_an_endless_device(path, tmp_path):
    path.symlink_to("/dev/zero")


def _link_to_an_entry(path, tmp_path):
    path.symlink_to(plant(tmp_path / "elsewhere"))


def _pipe(path, tmp_path):
    os.mkfifo(path)


def _huge(path, tmp_path):
    path.write_bytes(store._header("key", b""))
    os.truncate(path, 1 << 40)


def _writable_by_others(path, tmp_path):
    plant(path.parent.parent).chmod(0o666)


@pytest.mark.parametrize(
    ("plant_it", "read"),
    [
        (_huge, FileStore.get),  # what is found is mapped by its reader
        *(
            (plant_it, read)
            for plant_it in (
                _link_to_an_endless_device, _link_to_an_entry, _pipe, _writable_by_others
            )
            for read in (FileStore.get, FileStore.find)
        ),
    ],
)  # fmt: skip
def test_what_is_no_plain_file_is_deleted_and_neither_read_nor_waited_for(
    disk, tmp_path, plant_it, read
):
    path = disk._path("key")
    path.parent.mkdir(parents=True)
    plant_it(path, tmp_path)
    with (
        limited(1 << 30),
        pytest.warns(TilewrightWarning, match="damaged and was deleted"),
    ):
        assert read(disk, "key") is None
    assert not os.path.lexists(path)
    disk.put("key", b"again")
    assert disk.get("key") == b"again"


@pytest.mark.parametrize("plant_it", [_pipe, _link_to_an_endless_device])
def test_an_entry_takes_the_place_of_a_pipe_or_link(disk, tmp_path, plant_it):
    path = disk._path("key")
    path.parent.mkdir(parents=True)
    plant_it(path, tmp_path)
    disk.put("key", b"data")
    assert path.is_file() and not path.is_symlink()
    assert disk.get("key") == b"data"


def test_a_folder_of_entries_that_is_a_link_is_no_place_to_delete_from(disk, tmp_path):
    disk.put("key", b"data")
    away = tmp_path / "documents"
    away.mkdir()
    (away / "letter").write_text("dear")
    (disk.root / "li").symlink_to(away)
    assert disk.clear() == 1
    assert (away / "letter").exists()


# ----------------------------------------------------------------------- clocks, vanishing, full


def test_entries_of_the_future_go_first_when_the_clock_was_put_back(tmp_path):
    disk = FileStore(tmp_path, 10 * (1000 + store._HEADER))
    for i in range(10):
        disk.put(f"key{i}", bytes(1000))
    future = 4_000_000_000
    for i in range(5):
        os.utime(disk._path(f"key{i}"), (future, future))
    disk.put("new", bytes(1000))
    kept = {entry.key for entry in disk.entries()}
    assert {"new", *(f"key{i}" for i in range(5, 10))} <= kept
    assert len(kept & {f"key{i}" for i in range(5)}) < 5


def test_what_a_killed_writer_left_in_the_future_goes_too(disk):
    disk.put("key", b"x")
    left = disk._path("key").parent / ".writing-left"
    left.write_bytes(b"half")
    os.utime(left, (4_000_000_000, 4_000_000_000))
    disk.clear()
    assert not left.exists()


def test_a_folder_that_vanishes_is_made_again(disk, monkeypatch):
    import shutil

    disk.put("one", b"1")
    shutil.rmtree(disk.root)
    assert disk.get("one") is None
    disk.put("two", b"2")
    assert disk.get("two") == b"2"
    real, calls = store.write_whole, []

    def vanish(path, write, **how):
        if not calls:
            shutil.rmtree(disk.root)
        calls.append(path)
        real(path, write, **how)

    monkeypatch.setattr(store, "write_whole", vanish)
    disk.put("three", b"3")
    assert len(calls) == 2 and disk.get("three") == b"3"


def test_a_folder_that_vanishes_each_time_is_one_warning(disk, monkeypatch):
    import shutil

    def vanish(path, write, **how):
        shutil.rmtree(disk.root)
        raise FileNotFoundError(2, "No such file")

    monkeypatch.setattr(store, "write_whole", vanish)
    with pytest.warns(TilewrightWarning, match="caching is off from now on") as seen:
        disk.put("one", b"1")
        disk.put("two", b"2")
    assert len(seen) == 1


def test_a_full_disk_is_one_warning(disk, monkeypatch):
    disk.put("before", b"0")

    def full(path, write, **how):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_whole", full)
    with pytest.warns(TilewrightWarning, match="No space left on device") as seen:
        disk.put("one", b"1")
        assert disk.adopt("two", 1, lambda path: full(path, None)) is None
    assert len(seen) == 1
    assert disk.get("before") == b"0"


def test_a_store_of_one_s_own_says_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk = FileStore(Path(tmp_path) / "a" / "b", 1 << 20)
        assert disk.get("key") is None
        disk.put("key", b"data")
        assert disk.get("key") == b"data"
