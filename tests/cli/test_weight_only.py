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


def test_what_the_compiler_decomposes_is_written_as_it_was(command, tmp_path):
    """Resize and LSTM have no other form in ONNX."""
    text = """<ir_version: 8, opset_import: ["": 14]>
      m (float[2, 3, 64] x) => (float y) {
        a = MatMul(x, w)  b = Resize<mode = "nearest">(a, , s)  y, h, c = LSTM(b, v, r)
      }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    shapes = {"w": (64, 64), "v": (1, 12, 64), "r": (1, 12, 3)}
    arrays = {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    arrays["s"] = np.array([1, 2, 1], np.float32)
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    hidden = onnx.helper.make_attribute("hidden_size", 3)
    model.graph.node[2].attribute.append(hidden)
    path, small = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path)
    found = command("quantize", path, "--weights", "int8", "-o", small)
    assert found.code == 0, found.err
    assert "1 product in int8, 19.2 KiB of constants became 7.65 KiB" in found.out
    kinds = [node.op_type for node in onnx.load(small).graph.node]
    assert "Resize" in kinds and "LSTM" in kinds
    x = rng.standard_normal((2, 3, 64), dtype=np.float32)
    assert share(tw.compile(small)(x), tw.compile(path)(x)) < 0.05
