"""The speed of two checkouts side by side: what is served, and when there is no figure."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from benchmarks import commits, harness
from tilewright.cli.rounds import RoundTable


def row(error: float, **more: object) -> RoundTable:
    times = {"after": [2.0, 2.0], "before": [3.0, 3.0]}
    return RoundTable("net", 1, list(times), times, error={"after": error}, **more)


def test_times_of_both_and_their_ratio() -> None:
    assert "before    3.0000 ms  after    2.0000 ms" in commits.shown(row(1e-7))
    assert commits.shown(row(1e-7)).endswith("1.500")


@pytest.mark.parametrize("error", [1e-3, float("nan")])
def test_outputs_that_differ_have_no_speed(error: float) -> None:
    with pytest.raises(click.ClickException, match="net: outputs differ"):
        commits.shown(row(error))


def test_a_network_that_failed_has_no_speed() -> None:
    with pytest.raises(click.ClickException, match=r"net: .*no such model"):
        commits.shown(row(0.0, failed={"before": "no such model"}))


@pytest.mark.slow
def test_each_engine_runs_the_sources_that_it_names(tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(harness.ROOT / "src", before / "src")
    options = [str(before), "--networks", "lenet", "--rounds", "1", "--seconds", "0.01"]
    options += ["--dir", str(tmp_path), "--least", "0"]
    found = CliRunner().invoke(commits.main, options)
    assert found.exit_code == 0 and "geometric mean" in found.output, found.output
    broken = before / "src" / "tilewright" / "driver" / "compile.py"
    broken.write_text("raise ImportError('these are the other sources')\n")
    found = CliRunner().invoke(commits.main, options)
    assert found.exit_code == 1 and "these are the other sources" in found.output
