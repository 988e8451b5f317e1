"""The versions that compiled code depends on, and how they are found."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from tilewright.base.store import FileStore
from tilewright.driver import file_digest, version


def test_versions_are_those_that_the_packages_state() -> None:
    for name in ("numpy", "onnx", "llvmlite"):
        assert version._version(name) == importlib.metadata.version(name)


def test_the_first_folder_that_has_a_package_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, made in (("a", "one"), ("b", "some-1.0"), ("c", "some-2.0")):
        (tmp_path / folder / f"{made}.dist-info").mkdir(parents=True)
    paths = [str(tmp_path / name) for name in ("missing", "a", "b", "c")]
    monkeypatch.setattr(sys, "path", paths)
    assert version._version("some") == "1.0"


def test_a_package_that_is_installed_otherwise_is_asked_for_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "a" / "some-1.0.egg-info"
    info.mkdir(parents=True)
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: some\nVersion: 3.0\n")
    (tmp_path / "b" / "some-2.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert version._version("some") == "3.0"


def test_two_versions_in_one_folder_are_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in ("1.0", "2.0"):
        info = tmp_path / f"some-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: some\nVersion: {number}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert version._version("some") == importlib.metadata.version("some")


def test_a_package_that_is_missing_is_said() -> None:
    with pytest.raises(ModuleNotFoundError, match="no-such-package"):
        version._version("no-such-package")


def test_the_sources_are_all_that_this_package_has() -> None:
    root = Path(version.__file__).parents[1]
    expected = sorted(map(str, root.rglob("*.py")))
    assert sorted(version._sources(str(root))) == expected
    assert len(expected) > 500


def test_a_store_remembers_the_digest_of_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digest, "SETTLED", -60.0)
    monkeypatch.setattr(version, "FOUND", {})
    store = FileStore(tmp_path / "store", 1 << 20)
    assert not version.is_known(store)
    found = version._compiler((), store)
    assert found == version._compiler((), None)
    assert version.is_known(store)

    def refuse(paths: object) -> str:
        raise AssertionError("read again")

    monkeypatch.setattr(file_digest, "read_all", refuse)
    assert version._compiler((), store) == found


def test_what_only_looks_like_a_source_is_none(tmp_path: Path) -> None:
    """A link to nothing, which editors make beside a file that is open, and a folder."""
    (tmp_path / "folder.py").mkdir()
    for name in ("a.py", "folder.py/b.py", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / ".#a.py").symlink_to("user@host.123:456")
    (tmp_path / "linked.py").symlink_to("a.py")
    found = sorted(version._sources(str(tmp_path)))
    wanted = ("a.py", "folder.py/b.py", "linked.py")
    assert found == [str(tmp_path / name) for name in wanted]


def test_versions_of_all_packages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that every model needs, and the ones that this one needs besides."""
    made = {"numpy": "1", "onnx": "2", "llvmlite": "3", "torch": "4"}
    monkeypatch.setattr(version, "_version", made.__getitem__)
    seen = {version._compiler((), None), version._compiler(("torch",), None)}
    for name in made:
        with monkeypatch.context() as m:
            m.setitem(made, name, "5")
            seen.add(version._compiler(("torch",), None))
    assert len(seen) == 6
