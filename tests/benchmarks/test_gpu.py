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
from benchmarks import gpu, gpu_peers
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
        assert row["seconds"]["tilewright"] > 0
        engines = {*row["seconds"], *row["left_out"]}
        assert engines == {"tilewright", *gpu_peers.PEERS}
        assert row["left_out"]["torch.compile"] == "it is timed on GPUs only"
        assert "TB/s" not in row  # a rate would look as if it meant something


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in gpu.CASES if c.name == "copy")
    wrong = replace(case, expected=lambda _, x: np.where(x > 0.99, np.nan, -x))
    monkeypatch.setattr(gpu, "CASES", (wrong,))
    found = gpu.report("opencl", [], 1, [])
    assert "off by" in found["rows"][0]["failed"]
    assert gpu.main(["--rounds", "1"]) == 1


def copy_row(monkeypatch: pytest.MonkeyPatch, **peers: Any) -> dict[str, Any]:
    monkeypatch.setattr(gpu, "PEERS", peers)
    (row,) = gpu.report("opencl", [], 1, ["copy"])["rows"]
    return dict(row)


def test_a_peer_is_timed_only_if_its_result_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def negated(case: gpu_peers.PeerCase) -> gpu_peers.Prepared:
        return -case.arrays[0], lambda: 0.25

    def as_it_is(case: gpu_peers.PeerCase) -> gpu_peers.Prepared:
        return case.arrays[0], lambda: 0.25

    row = copy_row(monkeypatch, right=negated, wrong=as_it_is)
    assert row["seconds"].keys() == {"tilewright", "right"}
    assert row["seconds"]["right"] == 0.25
    assert row["left_out"] == {"wrong": "off by 2 of the largest result"}


def test_a_peer_that_is_not_installed_is_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_peers, "find_spec", lambda name: None)
    row = copy_row(monkeypatch, **gpu_peers.PEERS)
    assert row["seconds"].keys() == {"tilewright"}
    assert row["left_out"] == {
        "torch": "not installed: pip install torch",
        "torch.compile": "not installed: pip install torch",
        "XLA": "not installed: pip install 'jax[cuda12]'",
        "TVM": "not installed: pip install apache-tvm",
        "FlashAttention": "it computes attention only",
    }


@pytest.mark.parametrize("name", ["torch", "XLA", "TVM"])
def test_a_peer_that_is_installed_computes_small_cases_on_the_processor(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip({"torch": "torch", "XLA": "jax", "TVM": "tvm"}[name])
    row = copy_row(monkeypatch, **{name: gpu_peers.PEERS[name]})
    assert row["seconds"].keys() == {"tilewright", name}


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        ("softmax", "bfloat16", "it computes attention only"),
        ("attention", "float32", "it computes in 16 bits only"),
        ("attention, bfloat16", "bfloat16", "it needs a GPU"),
    ],
)
def test_what_flash_attention_does_not_compute(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, reason: str
) -> None:
    monkeypatch.setattr(gpu_peers, "find_spec", lambda name: name)
    case = next(c for c in gpu.CASES if c.name == "softmax")
    model, arrays = case.model(case.small), case.arrays(case.small)
    how = (model, arrays, dtype, case.expected, case.peer, False)
    with pytest.raises(gpu_peers.LeftOutError, match=reason):
        gpu_peers.PEERS["FlashAttention"](gpu_peers.PeerCase(name, *how))


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
