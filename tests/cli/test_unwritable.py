"""A file that cannot be written is reported before the work, and the place is left as it was."""

import os
from pathlib import Path

import pytest

from tilewright.base import events
from tilewright.base.files import check_writable

FULL = Path("/dev/full")
WORK = {"lower", "search", "weight-only"}  # events of long work


@pytest.fixture
def no_room(monkeypatch):
    """The folder of every file is one in which nobody may create files, root included."""

    def touch(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "touch", touch)


# Verbs, their options, and the name that they choose for a file that is not named.
WRITERS = {
    "compile": ([], ".tw"),
    "explain": ([], ".html"),
    "optimize": ([], ".optimized.onnx"),
    "quantize": (["--weights", "int8"], ".int8.onnx"),
}


@pytest.mark.parametrize("verb", WRITERS)
def test_a_folder_that_is_not_writable(command, perceptron, no_room, verb):
    more, suffix = WRITERS[verb]
    before = sorted(perceptron.parent.iterdir())
    place = perceptron.with_name(f"{perceptron.stem}{suffix}")
    for output in ([], ["-o", place]):
        with events.record() as seen:
            found = command(verb, perceptron, *more, *output)
        assert found.code == 1
        assert found.err == f"tilewright: {place}: Permission denied\n"
        assert not {e.kind for e in seen} & WORK
    assert sorted(perceptron.parent.iterdir()) == before


@pytest.mark.parametrize("verb", ["compile", "explain", "optimize"])
def test_a_folder_that_is(command, perceptron, verb):
    with events.record() as seen:
        assert command(verb, perceptron).code == 0
    assert {e.kind for e in seen} & WORK


def test_a_range_and_a_library_of_such_a_folder(command, perceptron, no_room):
    for name in ("m.tw", "m.so"):
        place = perceptron.with_name(name)
        found = command("compile", perceptron, "-o", place)
        assert found.err == f"tilewright: {place}: Permission denied\n"


@pytest.mark.skipif(not FULL.is_char_device(), reason="only Linux has /dev/full")
def test_a_device_that_takes_nothing(command, perceptron):
    with events.record() as seen:
        found = command("compile", perceptron, "-o", FULL)
    assert found.code == 1
    assert found.err == "tilewright: /dev/full: No space left on device\n"
    assert not {e.kind for e in seen} & WORK
    assert FULL.is_char_device()


def test_a_check_leaves_nothing(tmp_path):
    there = tmp_path / "there"
    there.write_bytes(b"old")
    check_writable(there)
    check_writable(tmp_path / "new")
    check_writable(Path("/dev/null"))
    assert there.read_bytes() == b"old" and list(tmp_path.iterdir()) == [there]
    with pytest.raises(OSError, match=str(there / "inside")):
        check_writable(there / "inside")


@pytest.mark.parametrize("folder", [".", "/", ".."])
def test_a_folder_is_no_file(folder):
    """Not even one that has no name of its own."""
    with pytest.raises(IsADirectoryError) as found:
        check_writable(Path(folder))
    assert found.value.filename == folder


def test_a_pipe_without_a_reader_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")


ONNX_WRITERS = {
    "optimize": ["-o"],
    "quantize": ["-o"],
    "quantize --weights int8": ["-o"],
    "compile --emit onnx": ["-o"],
    "verify": ["--minimize"],
}


@pytest.mark.parametrize("verb", ONNX_WRITERS)
@pytest.mark.parametrize("suffix", [".tw", ".pt2", ".pb"])
def test_an_onnx_model_has_no_name_of_another_format(command, perceptron, verb, suffix):
    place = perceptron.with_name(f"made{suffix}")
    name, *more = verb.split()
    with events.record() as seen:
        found = command(name, perceptron, *more, *ONNX_WRITERS[verb], place)
    said = f"{place}: an ONNX model is written, and {suffix} files are something else"
    assert found.code == 1 and not {e.kind for e in seen} & WORK
    assert found.err.endswith(f"tilewright: {said}. Name it made.onnx\n"), found.err
    assert not place.exists()
