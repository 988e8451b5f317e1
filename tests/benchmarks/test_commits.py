"""The speed of two checkouts side by side: what is served, and when there is no figure."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import numpy as np
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


def test_peers_are_shown_beside_both_and_only_their_failures_are_accepted() -> None:
    peers = {"onnxruntime": [4.0, 4.0], "openvino": [2.5, 3.5]}
    found = row(1e-7)
    found.times.update(peers)
    found.engines[1:1] = [*peers, "torch_compile"]
    found.failed["torch_compile"] = "no compiler"
    line = commits.shown(found)
    assert line.endswith(
        "1.500  onnxruntime 2.00  openvino 1.50  torch_compile no compiler"
    )
    assert commits.lead(found) == 1.5
    assert commits.lead(row(1e-7)) is None


def test_files_are_timed_beside_their_inputs_and_outputs(tmp_path: Path) -> None:
    model = tmp_path / "timm.net_1.5.onnx"
    model.touch()
    arrays = {"in.x": np.ones(2), "out.0": np.zeros(3), "out.1": np.ones(4)}
    np.savez(harness.inputs_of(model), **arrays)
    work = commits.task(model, 2, tmp_path, ["openvino", "torch_compile"])
    assert work.models == {"torch_compile": tmp_path / "timm.net_1.5.pt2"}
    assert work.options["before"]["sources"] == str(tmp_path / "src")
    assert "fallback" not in work.options["openvino"]
    right = commits.reference(work.inputs)
    assert right is not None and [len(y) for y in right] == [3, 4]
    np.savez(harness.inputs_of(model), **{"in.x": np.ones(2)})
    assert commits.reference(work.inputs) is None
    assert commits.files(str(tmp_path / "*.onnx")) == [model]
    with pytest.raises(click.BadParameter, match=r"no file .*missing"):
        commits.files(str(tmp_path / "missing*"))


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
