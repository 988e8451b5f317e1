"""The demo, on a network small enough for a test: beside ONNX Runtime, and alone."""

import numpy as np
import pytest

from tests.cli.conftest import perceptron_model
from tilewright.cli import demo, resnet


@pytest.fixture
def small(monkeypatch):
    model = perceptron_model()
    model.graph.input[0].name = "image"
    model.graph.node[0].input[0] = "image"
    monkeypatch.setattr(resnet, "build", model.SerializeToString)
    monkeypatch.setattr(resnet, "image", lambda: np.ones((2, 8), np.float32))


def test_demo_beside_onnxruntime(command, small):
    pytest.importorskip("onnxruntime")
    options = ("--rounds", 1, "--seconds", 0.01, "--threads", 1)
    found = command("demo", *options)
    assert found.code == 0, found.err + found.out
    assert (
        "differs from onnxruntime by at most" in found.out
        and "of its speed" in found.out
    )
    found = command("demo", *options, "--json")
    assert found.json["ok"] is True and found.json["speed"] > 0


def test_demo_alone(command, small, monkeypatch, tmp_path):
    monkeypatch.setattr(
        demo, "missing", lambda engine: "not installed: pip install onnxruntime"
    )
    found = command("demo", "--keep", tmp_path / "kept", "--threads", 1)
    assert found.code == 0, found.err + found.out
    assert (
        "onnxruntime is not installed" in found.out
        and "differs from float64" in found.out
    )
    assert {"resnet50.onnx", "resnet50.tw"} <= {
        p.name for p in (tmp_path / "kept").iterdir()
    }


def test_demo_fails_when_the_outputs_differ(command, small, monkeypatch):
    monkeypatch.setattr(demo, "missing", lambda engine: "not installed")
    monkeypatch.setattr(demo, "BAR", 0.0)
    found = command("demo", "--threads", 1)
    assert found.code == 1 and "over 0e+00" in found.out


@pytest.mark.parametrize("option", ["--target=vta", "--dim=n=3", "--jit"])
def test_demo_refuses_options_that_mean_nothing_to_it(command, option):
    found = command("demo", option)
    assert found.code == 2 and "No such option" in found.err
