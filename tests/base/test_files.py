"""A file is whole or absent, whatever happens while it is written."""

import os
import stat
import zipfile
from pathlib import Path

import pytest

from tests.interrupts import at_every_moment
from tilewright.base.files import write_whole


def put(data):
    return lambda file: file.write(data)


def test_a_file_is_made_and_replaced(tmp_path):
    path = tmp_path / "f"
    write_whole(path, put(b"old"))
    write_whole(path, put(b"new"), durable=True)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_result_has_the_usual_permissions_and_a_private_file_its_owners(tmp_path):
    (tmp_path / "usual").touch()
    write_whole(tmp_path / "result", put(b""))
    write_whole(tmp_path / "private", put(b""), private=True)
    mode = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert mode["result"] == mode["usual"]
    assert mode["private"] == 0o600


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError, ValueError])
def test_a_failure_leaves_the_old_file(tmp_path, failure):
    path = tmp_path / "f"
    write_whole(path, put(b"old"))

    def broken(file):
        file.write(b"half")
        raise failure

    with pytest.raises(failure):
        write_whole(path, broken)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    path = tmp_path / "f"

    def full(file):
        raise OSError(28, "No space left on device")

    def unreadable(file):
        open(tmp_path / "other", "rb")

    (tmp_path / "folder").mkdir()
    for target, write, named in (
        (path, full, path),
        (path, unreadable, tmp_path / "other"),
        (tmp_path / "no" / "f", put(b""), tmp_path / "no" / "f"),
    ):
        with pytest.raises(OSError, match=r"\w") as caught:
            write_whole(target, write)
        assert caught.value.filename in (named, str(named))
        assert caught.value.filename2 is None and "->" not in str(caught.value)


def test_a_name_that_a_folder_takes_meanwhile_is_named(tmp_path):
    path = tmp_path / "f"
    with pytest.raises(IsADirectoryError) as caught:
        write_whole(path, lambda file: path.mkdir())
    assert (caught.value.filename, caught.value.filename2) == (str(path), None)
    assert str(caught.value).endswith(f"directory: {str(path)!r}")


def test_an_interrupt_at_any_moment_leaves_nothing(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    for moment in at_every_moment(write_whole, lambda: write_whole(path, put(b"new"))):
        assert path.read_bytes() in (b"old", b"new")
        assert list(tmp_path.iterdir()) == [path], f"interrupted at moment {moment}"
        last = path.read_bytes()
        path.write_bytes(b"old")
    assert last == b"new" and moment > 8


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(path, put(b"text"))
    assert os.read(reader, 10) == b"text" and path.is_fifo()
    os.close(reader)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_device_is_named():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_whole(Path("/dev/full"), lambda file: file.write(b"new"))


def test_a_device_takes_formats_that_go_back():
    def archive(file):
        with zipfile.ZipFile(file, "w") as z:
            z.writestr("a", "text")

    write_whole(Path("/dev/null"), archive)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, put(b""))
