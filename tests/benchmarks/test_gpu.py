"""The benchmark for GPUs: its whole path without one, on PoCL, at small sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright
from benchmarks import gpu
from tests.targets.opencl.running import pocl
from tilewright.runtime import devices

NETWORK = """
<ir_version: 8, opset_import: ["": 17]>
small (float[4, 6] x) => (float[4, 6] y) { a = Relu(x) y = Softmax(a) }
"""


@pytest.fixture(autouse=True)
def _on_pocl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pocl()
    monkeypatch.setenv("TILEWRIGHT_OPENCL_DEVICE", "Portable")
    devices.find.cache_clear()
    yield
    devices.find.cache_clear()


def test_it_says_that_its_times_mean_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert gpu.main(["--rounds", "1", "--only", "softmax", "mask"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert not found["gpu"] and found["note"] == gpu.MEANINGLESS in said.err
    assert [row["case"] for row in found["rows"]] == ["mask", "softmax"]
    for row in found["rows"]:
        assert (
            set(row["seconds"]) == {"tilewright"} and row["seconds"]["tilewright"] > 0
        )
        assert "TB/s" not in row  # a rate would look as if it meant something


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in gpu.CASES if c.name == "copy")
    wrong = replace(case, expected=lambda x: np.where(x > 0.99, np.nan, -x))
    monkeypatch.setattr(gpu, "CASES", (wrong,))
    found = gpu.report("opencl", [], 1, [])
    assert "off by" in found["rows"][0]["failed"]
    assert gpu.main(["--rounds", "1"]) == 1


def test_a_missing_device_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        devices.find("cuda")
    except Exception:
        assert gpu.main(["--target", "cuda", "--only", "copy"]) == 1
        assert capsys.readouterr().err.startswith("error: ")


def test_every_case_is_a_model_at_both_sizes() -> None:
    for case in gpu.CASES:
        for sizes in (case.full, case.small):
            model = case.model(sizes)
            assert len(model.graph.input) == len(case.inputs)
        assert case.flops or case.bytes


def test_a_network_is_compared_with_the_processor(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(NETWORK)
    onnx.save(model, tmp_path / "small.onnx")
    (row,) = gpu.report("opencl", [str(tmp_path / "small.onnx")], 1, ["none"])["rows"]
    assert row["error"] < 1e-5 and row["seconds"]["tilewright"] > 0


def test_a_wrong_network_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(onnx.parser.parse_model(NETWORK), tmp_path / "small.onnx")
    plain = tilewright.compile

    def wrong(source: Any, **options: Any) -> Any:
        made = plain(source, **options)
        return made if options else lambda x: made(x) + 1

    monkeypatch.setattr(tilewright, "compile", wrong)
    (row,) = gpu.report("opencl", [str(tmp_path / "small.onnx")], 1, ["none"])["rows"]
    assert "small.onnx: off by" in row["failed"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet", "bert"])
def test_networks_have_names(name: str) -> None:
    (row,) = gpu.report("opencl", [name], 1, ["none"])["rows"]
    assert row["case"] == name and row["error"] < 1e-3
