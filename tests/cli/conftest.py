"""Small models as files, and the command run in this process."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.cli import app


def make(nodes, inputs, outputs, weights=None, opset=17, **more):
    """An ONNX model from nodes, name -> (type, shape) tables, and name -> array."""

    def infos(table):
        return [helper.make_tensor_value_info(n, t, s) for n, (t, s) in table.items()]

    initializers = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(
        nodes, "small", infos(inputs), infos(outputs), initializers
    )
    opsets = more.pop("opsets", [helper.make_opsetid("", opset)])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def perceptron_model(batch=2):
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 16), dtype=np.float32),
        "b1": rng.standard_normal(16, dtype=np.float32),
        "w2": rng.standard_normal((16, 4), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "hidden"),
        helper.make_node("Relu", ["h"], ["r"], "rectify"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], "head"),
    ]
    x, y = (TensorProto.FLOAT, [batch, 8]), (TensorProto.FLOAT, [batch, 4])
    return make(nodes, {"x": x}, {"y": y}, weights)


@pytest.fixture
def perceptron(tmp_path) -> Path:
    """x: float32[2, 8] -> y: float32[2, 4], through a hidden layer of 16."""
    path = tmp_path / "perceptron.onnx"
    onnx.save(perceptron_model(), path)
    return path


@pytest.fixture
def symbolic(tmp_path) -> Path:
    """The perceptron with a symbolic dimension `batch`."""
    path = tmp_path / "symbolic.onnx"
    onnx.save(perceptron_model("batch"), path)
    return path


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    """No test sees the user's cache or settings."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEWRIGHT_DEBUG", raising=False)


@pytest.fixture
def command(capsys):
    """Run the command in this process: code, out, err, and out as JSON."""

    def run(*arguments):
        code = app.run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        found = SimpleNamespace(code=code, out=out, err=err)
        if "--json" in arguments and out.strip():
            found.json = json.loads(out)
        return found

    return run
