"""Machines by name: built in, registered by a program, supplied by an installed package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.base.errors import UnsupportedError
from tilewright.targets import registry
from tilewright.targets.registry import Machine


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_MACHINES", dict(registry._MACHINES))
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()


def test_each_role_has_its_machines() -> None:
    assert registry.names() == ("cpu",)
    assert registry.simulators() == ("vdla", "vta")
    assert registry.supplies("vta", "quantized")
    assert not registry.supplies("vdla", "quantized")
    assert not registry.supplies("abacus", "simulator")


def test_a_program_registers_a_machine() -> None:
    class Abacus:
        name = "abacus"

    registry.register("abacus", Machine(simulator=Abacus))
    assert isinstance(registry.simulator("abacus"), Abacus)
    assert "abacus" in registry.simulators()
    with pytest.raises(UnsupportedError, match="unknown target 'abacus'"):
        registry.target("abacus")


def _package(folder: Path, place: str) -> None:
    """An installed package of one module, as pip leaves it."""
    (folder / "beads.py").write_text(
        "from tilewright.targets.registry import Machine\n"
        "ABACUS = Machine(simulator='beads:Abacus')\n"
        "class Abacus: name = 'abacus'\n"
    )
    info = folder / "beads-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: beads\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nabacus = {place}\n")


def test_an_installed_package_supplies_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _package(tmp_path, "beads:ABACUS")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.supplies("abacus", "simulator")
    assert registry.simulator("abacus").name == "abacus"
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
        registry.simulator("abacus")
    assert registry.supplies("vta", "simulator")
