"""The arenas of networks beside their lower bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import arenas, harness


def test_networks_are_read_from_the_directory_that_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    prepare = harness.prepare

    def spy(name: str, directory: Path) -> Any:
        asked.append((name, directory))
        return prepare(name, directory)

    monkeypatch.setattr(harness, "prepare", spy)
    options = ["--networks", "squeezenet", "--dir", str(folder)]
    found = CliRunner().invoke(arenas.main, options)
    assert asked == [("squeezenet", folder)]
    assert found.exit_code == 0 and found.output.startswith("squeezenet ")
