"""`tilewright quantize --weights`: a file that is smaller and gives almost the same."""

from __future__ import annotations

import numpy as np
import onnx

import tilewright as tw
from tests.graph.test_weight_only import network, share


def test_quantize_weights(command, tmp_path):
    model, small = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(network(), model)
    found = command(
        "quantize", model, "--weights", "int8", "--group", "64", "-o", small, "--json"
    )
    assert found.code == 0, found.err
    told = found.json
    before, after = told["bytes"]
    assert after < before / 3
    assert len(told["products"]) == 2
    assert all(0 < p["error"] < 0.01 for p in told["products"])
    x = np.ones((3, 100), np.float32)
    assert share(tw.compile(small)(x), tw.compile(model)(x)) < 0.02


def test_quantize_weights_says_what_is_wrong(command, tmp_path):
    model = tmp_path / "m.onnx"
    onnx.save(network(), model)
    small = ["-o", tmp_path / "q.onnx"]
    for code, arguments, said in (
        (2, ["--weights", "int4", "--group", "5", *small], "group is 5"),
        (2, ["--group", "64", *small], "--group: it is for --weights"),
        (2, ["--weights", "int4", "--smooth", "0.5", *small], "--smooth: not with"),
        (2, ["--weights", "int8", "--for", "vta", *small], "--for: not with"),
    ):
        found = command("quantize", model, *arguments)
        assert found.code == code
        assert said in found.err
    assert not (tmp_path / "q.onnx").exists()
