"""Targets by name: built in, registered by a program, supplied by an installed package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.base.errors import UnsupportedError
from tilewright.targets import registry
from tilewright.targets.base import Target
from tilewright.targets.registry import TargetEntry


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_ROWS", dict(registry._ROWS))
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()


def test_what_each_target_takes() -> None:
    assert " ".join(registry.names()) == "amdgpu cpu cuda npu opencl spirv vdla vta"
    takes = {name: registry.programs(name) for name in registry.names()}
    assert takes == {
        "amdgpu": "",
        "cpu": "",
        "cuda": "",
        "npu": "lift",
        "opencl": "",
        "spirv": "",
        "vdla": "kernel",
        "vta": "kernel",
    }
    assert registry.programs("abacus") == ""
    assert [n for n in takes if registry.target(n).quantizes] == ["vta"]
    devices = {registry.target(name).device for name in takes}
    assert devices == {"host", *takes} - {"cpu"}


def test_a_program_registers_a_target() -> None:
    class Abacus(Target):
        name = "abacus"

    registry.register("abacus", TargetEntry(lambda settings: Abacus()))
    made = registry.target("abacus")
    assert isinstance(made, Abacus)
    assert "abacus" in registry.names()
    with pytest.raises(UnsupportedError, match="'abacus' has no default schedule"):
        made.default_schedule(None, (), ())
    with pytest.raises(UnsupportedError, match="unknown target 'slate'"):
        registry.target("slate")


def _package(folder: Path, place: str) -> None:
    """An installed package of one module, as pip leaves it."""
    (folder / "beads.py").write_text(
        "from tilewright.targets.base import Target\n"
        "from tilewright.targets.registry import TargetEntry\n"
        "class Abacus(Target): name = 'abacus'\n"
        "def make(settings): return Abacus()\n"
        "ABACUS = TargetEntry('beads:make')\n"
    )
    info = folder / "beads-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: beads\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nabacus = {place}\n")


def test_an_installed_package_supplies_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _package(tmp_path, "beads:ABACUS")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.target("abacus").name == "abacus"
    assert registry.intrinsics("abacus") == {}


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("beads:Abacus", "it is a type"),
        ("beads:SLATE", "cannot be imported: module 'beads' has no attribute 'SLATE'"),
        ("slate:SLATE", "cannot be imported: No module named 'slate'"),
    ],
)
def test_a_package_that_supplies_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, why: str
) -> None:
    _package(tmp_path, place)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UnsupportedError, match=f"'abacus' is supplied by beads as {place}: .*{why}"
    ):
        registry.target("abacus")
    assert registry.target("vta").name == "vta"
